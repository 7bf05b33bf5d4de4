#include "program/execution.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/memory.h"
#include "data/kernels/copy.h"

namespace horocache::program {
namespace {

constexpr int64_t kStepCost = 64;  // cost of a step besides its bytes, in bytes that could be moved in that time

}  // namespace

int64_t BufferBytes(const RankProgram& program, int buffer, const Sizes& sizes) {
  const int64_t fine = program.extents[static_cast<size_t>(buffer)];
  const int64_t elements = buffer <= kOutput ? sizes.Offset(fine) : sizes.ScratchOffset(fine);
  return elements * sizes.element_bytes();
}

int64_t TileElements(const Program& program, const Sizes& sizes, int64_t message_bytes) {
  const int64_t bytes = message_bytes / program.most_count;
  const int64_t unit = bytes >= kCacheLine ? kCacheLine : sizes.element_bytes();
  return std::max<int64_t>(1, bytes / unit * unit / sizes.element_bytes());
}

int64_t TilesOf(const Sizes& sizes, int64_t tile_elements) {
  return std::max<int64_t>(1, (sizes.MostPartElements() + tile_elements - 1) / tile_elements);
}

Execution::Execution(RunSite site)
    : site_(std::move(site)),
      program_(site_.program->programs[static_cast<size_t>(site_.rank)]),
      element_bytes_(site_.sizes.element_bytes()),
      tile_elements_(site_.tile_elements),
      tiles_(TilesOf(site_.sizes, tile_elements_)),
      states_(program_.thread_blocks.size()) {
  for (const ThreadBlock& thread_block : program_.thread_blocks) running_ += thread_block.num_steps > 0 ? 1 : 0;
}

bool Execution::Advance(int64_t* budget) {
  bool moved = ForgetPopped();
  for (size_t thread_block = 0; thread_block < states_.size() && *budget > 0; ++thread_block) {
    moved |= AdvanceThreadBlock(thread_block, budget);
  }
  return moved;
}

bool Execution::AdvanceThreadBlock(size_t thread_block, int64_t* budget) {
  State& state = states_[thread_block];
  const ThreadBlock& one = program_.thread_blocks[thread_block];
  bool moved = false;
  while (one.num_steps > 0 && state.tile < tiles_ && *budget > 0) {
    const bool had_popped = state.popped;
    const bool over = RunStep(thread_block, budget);
    moved |= over || state.popped != had_popped;
    if (!over) break;
    if (++state.step < one.num_steps) continue;
    state.step = 0;
    if (++state.tile == tiles_) --running_;
  }
  return moved;
}

bool Execution::RunStep(size_t thread_block, int64_t* budget) {
  State& state = states_[thread_block];
  const Step& step = program_.steps[program_.thread_blocks[thread_block].first_step + state.step];
  if (state.popped) return PushKept(thread_block, step, budget);
  Due due;
  if (!CanRun(thread_block, step, &due)) return false;
  *budget -= due.bytes + kStepCost;
  state.wait = Wait::kNone;
  if (step.op == StepOp::kSend &&
      PushDirect(thread_block, DirectAt(thread_block, step.source, step, due.bytes), due.bytes)) {
    return true;
  }
  Connections& connections = *site_.connections;
  const int number = static_cast<int>(thread_block);
  if (Pops(step.op)) due.message = connections.Take(number, due.message);
  const bool may = due.slot != nullptr && Stores(step.op);
  const std::byte* const direct = may ? DirectAt(thread_block, step.destination, step, due.bytes) : nullptr;
  if (due.keeps && !Stores(step.op)) {
    state.held.resize(static_cast<size_t>(due.bytes));
    due.slot = state.held.data();
  }
  Work(thread_block, step, due.message, direct != nullptr ? nullptr : due.slot);
  if (Pops(step.op)) connections.Pop(number);
  state.popped = due.keeps;
  if (due.keeps) return Block(&state, Wait::kSlot);
  if (!PushDirect(thread_block, direct, due.bytes) && Pushes(step.op)) Push(thread_block, due.bytes);
  return true;
}

// Looks for the message first, before it takes anything that other ranks may wait for.
bool Execution::CanRun(size_t thread_block, const Step& step, Due* due) {
  State& state = states_[thread_block];
  const int number = static_cast<int>(thread_block);
  if (!Ready(thread_block, step)) return Block(&state, Wait::kStep);
  due->bytes = MessageBytes(step, state.tile);
  if (Pops(step.op)) {
    due->message = site_.connections->Peek(number, due->bytes);
    if (due->message == nullptr) return Block(&state, Wait::kMessage);
  }
  if (Pushes(step.op)) {
    due->slot = site_.connections->Claim(number);
    due->keeps = due->slot == nullptr;
    if (due->keeps && !Pops(step.op)) return Block(&state, Wait::kSlot);
  }
  return !Stores(step.op) || RetractDirect(step, state.tile) || Block(&state, Wait::kReader);
}

bool Execution::PushKept(size_t thread_block, const Step& step, int64_t* budget) {
  State& state = states_[thread_block];
  std::byte* slot = site_.connections->Claim(static_cast<int>(thread_block));
  if (slot == nullptr) return Block(&state, Wait::kSlot);
  const int64_t bytes = MessageBytes(step, state.tile);
  *budget -= bytes + kStepCost;
  state.popped = false;
  state.wait = Wait::kNone;
  if (Stores(step.op)) {
    if (PushDirect(thread_block, DirectAt(thread_block, step.destination, step, bytes), bytes)) return true;
    Collect(thread_block, step, slot);
  } else if (bytes > 0) {
    data::Copy(slot, state.held.data(), static_cast<size_t>(bytes), Streams(thread_block));
  }
  Push(thread_block, bytes);
  return true;
}

void Execution::Push(size_t thread_block, int64_t bytes) {
  ++states_[thread_block].pushed;
  site_.connections->Push(static_cast<int>(thread_block), bytes);
}

const std::byte* Execution::DirectAt(size_t thread_block, const Place& place, const Step& step, int64_t bytes) const {
  const std::byte* memory = OnePiece(place, step, states_[thread_block].tile);
  const bool reached = memory != nullptr && site_.connections->Reaches(static_cast<int>(thread_block), memory, bytes);
  return reached ? memory : nullptr;
}

bool Execution::PushDirect(size_t thread_block, const std::byte* memory, int64_t bytes) {
  if (memory == nullptr) return false;
  const auto number = static_cast<int>(thread_block);
  site_.connections->PushFrom(number, memory);
  direct_.push_back({number, states_[thread_block].pushed++, memory, bytes});
  return true;
}

const std::byte* Execution::OnePiece(const Place& place, const Step& step, int64_t tile) const {
  const std::byte* first = nullptr;
  const std::byte* end = nullptr;
  for (int64_t i = 0; i < step.count; ++i) {
    const Run run = RunOf(step, tile, i, 0);
    if (run.count == 0) continue;
    const std::byte* at = At(place, i, run.begin);
    if (first == nullptr) {
      first = at;
    } else if (at != end) {
      return nullptr;
    }
    end = at + run.count * element_bytes_;
  }
  return first;
}

bool Execution::RetractDirect(const Step& step, int64_t tile) {
  bool free = true;
  for (int64_t i = 0; i < step.count && !direct_.empty(); ++i) {
    const Run run = RunOf(step, tile, i, 0);
    const std::byte* begin = At(step.destination, i, run.begin);
    const std::byte* end = begin + run.count * element_bytes_;
    std::erase_if(direct_, [&](const DirectMessage& one) {
      if (one.memory >= end || begin >= one.memory + one.bytes) return false;
      const bool back = site_.connections->Retract(one.thread_block, one.number, one.memory, one.bytes);
      free &= back;
      return back;
    });
  }
  return free;
}

// Forgets the direct messages that their receivers have popped. Returns true if there were any.
bool Execution::ForgetPopped() {
  if (direct_.empty()) return false;
  return std::erase_if(direct_, [this](const DirectMessage& one) {
           return site_.connections->Popped(one.thread_block) > one.number;
         }) > 0;
}

int64_t Execution::Done(size_t thread_block, int64_t tile, uint32_t step) const {
  return tile * program_.thread_blocks[thread_block].num_steps + step;
}

bool Execution::Ready(size_t thread_block, const Step& step) const {
  const int64_t tile = states_[thread_block].tile;
  for (uint32_t i = 0; i < step.num_waits; ++i) {
    const program::Wait& wait = program_.waits[step.first_wait + i];
    const auto other = static_cast<size_t>(wait.thread_block);
    const State& state = states_[other];
    if (Done(other, state.tile, state.step) <= Done(other, tile, static_cast<uint32_t>(wait.step))) return false;
  }
  return true;
}

Execution::Run Execution::RunOf(const Step& step, int64_t tile, int64_t index, int64_t offset) const {
  const int64_t refinement = site_.program->refinement;
  const Place& place = step.destination.buffer >= 0 ? step.destination : step.source;
  const int64_t first = place.index % refinement + index;
  const int64_t size_class = (step.size_class + first / refinement) % site_.program->classes;
  const int64_t elements = site_.sizes.PartElements(size_class, first % refinement);
  Run run;
  run.offset = offset;
  run.begin = std::min(elements, tile * tile_elements_);
  run.count = std::min(elements - run.begin, tile_elements_);
  return run;
}

int64_t Execution::MessageBytes(const Step& step, int64_t tile) const {
  int64_t elements = 0;
  for (int64_t i = 0; i < step.count; ++i) elements += RunOf(step, tile, i, 0).count;
  return elements * element_bytes_;
}

std::byte* Execution::At(const Place& place, int64_t index, int64_t begin) const {
  const int64_t fine = place.index + index;
  const int64_t element = place.buffer <= kOutput ? site_.sizes.Offset(fine) : site_.sizes.ScratchOffset(fine);
  return site_.buffers[static_cast<size_t>(place.buffer)] + (element + begin) * element_bytes_;
}

void Execution::Work(size_t thread_block, const Step& step, const std::byte* message, std::byte* slot) {
  const int64_t tile = states_[thread_block].tile;
  const bool stream_slot = slot != nullptr && Streams(thread_block);
  int64_t offset = 0;
  for (int64_t i = 0; i < step.count; ++i) {
    const Run run = RunOf(step, tile, i, offset);
    offset += run.count;
    if (run.count == 0) continue;
    const auto bytes = static_cast<size_t>(run.count * element_bytes_);
    const std::byte* from = message != nullptr ? message + run.offset * element_bytes_ : At(step.source, i, run.begin);
    std::byte* out = slot == nullptr ? nullptr : slot + run.offset * element_bytes_;
    std::byte* to = step.destination.buffer < 0 ? nullptr : At(step.destination, i, run.begin);
    if (Reduces(step.op)) {
      const std::byte* inputs[] = {to, from};
      data::FoldCall call;
      call.inputs = inputs;
      call.num_inputs = 2;
      call.count = run.count;
      call.output = Stores(step.op) ? to : out;
      call.second = Stores(step.op) ? out : nullptr;
      call.stream_output = call.output == out && stream_slot;
      call.stream_second = stream_slot;
      if (step.finishes) call.scaling = site_.finish;
      site_.fold(call);  // without data::Fold: the call is neither empty nor a plain copy
      continue;
    }
    if (to != nullptr) data::Copy(to, from, bytes, false);
    if (out != nullptr) data::Copy(out, from, bytes, stream_slot);
  }
}

void Execution::Collect(size_t thread_block, const Step& step, std::byte* slot) const {
  const int64_t tile = states_[thread_block].tile;
  int64_t offset = 0;
  for (int64_t i = 0; i < step.count; ++i) {
    const Run run = RunOf(step, tile, i, offset);
    offset += run.count;
    if (run.count == 0) continue;
    data::Copy(slot + run.offset * element_bytes_, At(step.destination, i, run.begin),
               static_cast<size_t>(run.count * element_bytes_), Streams(thread_block));
  }
}

std::vector<std::string> Execution::Blocked(size_t most) const {
  std::vector<std::string> lines;
  for (size_t thread_block = 0; thread_block < states_.size() && lines.size() < most; ++thread_block) {
    const State& state = states_[thread_block];
    const ThreadBlock& one = program_.thread_blocks[thread_block];
    if (one.num_steps == 0 || state.tile == tiles_) continue;
    std::string line = "rank " + std::to_string(site_.rank) + " thread block " + std::to_string(thread_block) +
                       " step " + std::to_string(state.step) + " of tile " + std::to_string(state.tile) + " waits for ";
    if (state.wait == Wait::kMessage) {
      line += "a message from rank " + std::to_string(one.receive) + " on channel " + std::to_string(one.channel);
    } else if (state.wait == Wait::kSlot) {
      line += "a free slot to rank " + std::to_string(one.send) + " on channel " + std::to_string(one.channel);
    } else if (state.wait == Wait::kReader) {
      line += "a rank that still reads the elements to be overwritten";
    } else {
      line += "other thread blocks";
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

void Execution::AddWaitingFor(std::vector<int>* ranks) const {
  for (size_t thread_block = 0; thread_block < states_.size(); ++thread_block) {
    const State& state = states_[thread_block];
    if (state.tile == tiles_) continue;
    if (state.wait == Wait::kMessage) ranks->push_back(program_.thread_blocks[thread_block].receive);
    if (state.wait == Wait::kSlot) ranks->push_back(program_.thread_blocks[thread_block].send);
  }
  for (const DirectMessage& one : direct_) {
    ranks->push_back(program_.thread_blocks[static_cast<size_t>(one.thread_block)].send);
  }
  std::sort(ranks->begin(), ranks->end());
  ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
}

}  // namespace horocache::program
