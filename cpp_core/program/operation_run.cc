// How an operation runs its program: sizes, connections, buffers, and the copies before and after the run.
#include <algorithm>
#include <utility>

#include "base/memory.h"
#include "data/kernels/widen.h"
#include "program/link_plan.h"
#include "program/operation.h"

namespace horocache::program {

bool ProgramTask::Plan(int64_t elements, std::string* why) {
  const Program& program = program_->program;
  widened_ = folds() && Is16BitFloat(collective_.dtype);
  run_bytes_ = widened_ ? static_cast<int64_t>(sizeof(float)) : element_bytes_;
  const Sizes sizes(elements, run_bytes_, program.classes, program.refinement, program.uniform);
  if (!sizes.fits() || elements == 0) {
    *why = elements == 0 ? "there are no elements"
                         : "its chunks must have one size, which those of these elements have not";
    return false;
  }
  const LinkWish wish{program_->protocol, program_->slots, program_->tile_bytes};
  if (!PlanLinks(program, program_->wirings, sizes, wish, queue_.links.get(), &plan_, why)) return false;
  const int64_t tile = TileElements(program, sizes, plan_.slot_bytes);
  site_.emplace(RunSite{&program, rank(), sizes, nullptr, {}, queue_.links.get(), tile, {}});
  return true;
}

bool ProgramTask::Place() {
  const data::KernelSet& kernels = *queue_.resources.kernels;
  if (folds()) {
    PrepareFold(kernels);
    site_->fold = kernels.Find(widened_ ? DType::kFloat32 : collective_.dtype, collective_.reduce_op);
  }
  if (collective_.output == nullptr && collective_.segments.size() == 1) result_ = collective_.segments[0].output;
  if (Status placed = PlaceBuffers(); !placed.ok()) {
    queue_.Break(placed);  // the other ranks run the program and depend on this rank
    return EndWith(std::move(placed));
  }
  queue_.links->Begin(plan_);
  ++queue_.counters.programs;
  state_ = State::kWait;
  return true;
}

Status ProgramTask::PlacePrivately(WorkBuffer* buffer, int64_t bytes, std::byte** place) {
  HC_RETURN_IF_ERROR(buffer->Reserve(std::max<int64_t>(bytes, 1)));
  *place = buffer->data();
  return Status::Ok();
}

Status ProgramTask::PlaceScratch(const RankProgram& mine) {
  const auto bytes_of = [&](size_t buffer) {
    const int64_t bytes = BufferBytes(mine, static_cast<int>(buffer), site_->sizes);
    return RoundUp(bytes, int64_t{kCacheLine});
  };
  int64_t all = 0;
  for (size_t buffer = kOutput + 1; buffer < mine.extents.size(); ++buffer) all += bytes_of(buffer);
  if (all == 0) return Status::Ok();
  std::byte* at = nullptr;
  HC_RETURN_IF_ERROR(PlacePrivately(&queue_.scratch, all, &at));
  for (size_t buffer = kOutput + 1; buffer < mine.extents.size(); ++buffer) {
    site_->buffers[buffer] = at;
    at += bytes_of(buffer);
  }
  return Status::Ok();
}

// Note [Buffers of a program]
// A program works on the user's tensors where it can. It reads the input there if it does not store into it and the
// input needs no scaling or widening. It computes the result there if the result is one tensor with room for everything
// that the program stores. If the program's input and output share a buffer, the input is first copied into it.
Status ProgramTask::PlaceBuffers() {
  const RankProgram& mine = program_->program.programs[static_cast<size_t>(rank())];
  const Joined joined = JoinedOf(*program_, rank());
  const int64_t elements = site_->sizes.Offset(int64_t{program_->program.classes} * program_->program.refinement);
  std::byte* loaded = nullptr;    // destination of the input's copy; null: the program reads the user's input
  std::byte* finished = nullptr;  // location of the result after the run
  site_->buffers.assign(mine.extents.size(), nullptr);
  HC_RETURN_IF_ERROR(PlaceScratch(mine));
  if (joined.joined) {
    HC_RETURN_IF_ERROR(PlaceJoined(joined, elements * run_bytes_, &loaded, &finished));
  } else {
    HC_RETURN_IF_ERROR(PlaceApart(elements * run_bytes_, &loaded, &finished));
  }
  PlanMoves(loaded, finished, PlacesOf(collective_.op, size(), rank(), collective_.root).output * elements);
  return Status::Ok();
}

// `bytes` is the size of one place.
Status ProgramTask::PlaceJoined(const Joined& joined, int64_t bytes, std::byte** loaded, std::byte** finished) {
  const Places places = PlacesOf(collective_.op, size(), rank(), collective_.root);
  std::byte* memory = result_;
  if (widened_ || memory == nullptr || places.input > places.output) {
    HC_RETURN_IF_ERROR(PlacePrivately(&queue_.output, std::max(places.input, places.output) * bytes, &memory));
  }
  site_->buffers[static_cast<size_t>(joined.buffer)] = memory;
  *loaded = memory + joined.first_input * bytes;
  *finished = memory + joined.first_output * bytes;
  return Status::Ok();
}

Status ProgramTask::PlaceApart(int64_t bytes, std::byte** loaded, std::byte** finished) {
  const Places places = PlacesOf(collective_.op, size(), rank(), collective_.root);
  const bool changed = widened_ || (folds() && scaling_.before != 1.0);
  const std::byte* given = collective_.segments.size() == 1 ? collective_.segments[0].input : nullptr;
  const bool stays = given != nullptr && given != result_ && !changed && !program_->writes_input;
  std::byte*& input = site_->buffers[kInput];
  std::byte*& output = site_->buffers[kOutput];
  if (places.input > 0 && stays) {
    input = const_cast<std::byte*>(given);  // the program only reads it
  } else if (places.input > 0) {
    HC_RETURN_IF_ERROR(PlacePrivately(&queue_.input, places.input * bytes, &input));
    *loaded = input;
  }
  output = widened_ ? nullptr : result_;
  if (places.output > 0 && output == nullptr) {
    HC_RETURN_IF_ERROR(PlacePrivately(&queue_.output, places.output * bytes, &output));
  }
  *finished = output;
  return Status::Ok();
}

void ProgramTask::PlanMoves(std::byte* loaded, std::byte* finished, int64_t result_elements) {
  data::Scaling before, after;
  if (folds()) {
    before.before = scaling_.before;
    after = scaling_;
    after.before = 1.0;
    if (program_->program.marks_finished) site_->finish = std::exchange(after, {});
  }
  for (const data::Segment& segment : collective_.segments) {
    if (loaded == nullptr) break;
    if (segment.input != nullptr && (segment.input != loaded || !before.none())) {
      loads_.push_back({loaded, segment.input, segment.count, before, true});
    }
    loaded += segment.count * run_bytes_;
  }
  if (collective_.segments.size() == 1 || collective_.output != nullptr) {
    if (result_ != nullptr && (result_ != finished || !after.none())) {
      stores_.push_back({result_, finished, result_elements, after, false});
    }
    return;
  }
  for (const data::Segment& segment : collective_.segments) {
    if (segment.output != nullptr) stores_.push_back({segment.output, finished, segment.count, after, false});
    finished += segment.count * run_bytes_;
  }
}

bool ProgramTask::StartRun() {
  run_ = std::make_unique<Execution>(*site_);
  state_ = State::kLoad;
  return true;
}

bool ProgramTask::Moved(const std::vector<Move>& moves, int64_t* budget) {
  while (move_ < moves.size() && *budget > 0) {
    const Move& move = moves[move_];
    const int64_t piece = std::min(move.elements - moved_, PieceElements(*budget));
    MoveNow(move, moved_, piece, budget);
    moved_ += piece;
    if (moved_ < move.elements) continue;
    ++move_;
    moved_ = 0;
  }
  if (move_ < moves.size()) return false;
  move_ = 0;
  return true;
}

void ProgramTask::MoveNow(const Move& move, int64_t at, int64_t count, int64_t* budget) {
  std::byte* const to = move.to + at * (move.loads ? run_bytes_ : element_bytes_);
  const std::byte* const from = move.from + at * (move.loads ? element_bytes_ : run_bytes_);
  if (!widened_ && move.scaling.none()) return Copied(to, from, count * element_bytes_, false, budget);
  Charge(count * run_bytes_, budget);
  if (!widened_) return ScaleNow(from, to, count, move.scaling);
  if (move.loads) {
    data::Widen(collective_.dtype, from, to, count);
    return ScaleNow(to, to, count, move.scaling);
  }
  std::byte* const wide = const_cast<std::byte*>(from);  // the operation's own memory
  ScaleNow(wide, wide, count, move.scaling);
  data::Narrow(collective_.dtype, wide, to, count);
}

void ProgramTask::ScaleNow(const std::byte* from, std::byte* to, int64_t count, const data::Scaling& scaling) const {
  if (scaling.none()) return;
  const std::byte* inputs[] = {from};
  data::FoldCall call;
  call.inputs = inputs;
  call.num_inputs = 1;
  call.count = count;
  call.output = to;
  call.scaling = scaling;
  site_->fold(call);
}

bool ProgramTask::Run(int64_t* budget) {
  const bool moved = run_->Advance(budget);
  const bool over = run_->finished() && queue_.links->Settled();
  if (const LinkFailure failure = queue_.links->failure(); !failure.status.ok()) {
    queue_.Break({failure.status.code(), "program '" + program_->name + "' on " + collective_.Rank(rank()) +
                                             ", between it and " + collective_.Rank(failure.peer) + ": " +
                                             failure.status.message()});
    return EndWith(queue_.broken());
  }
  if (!over) return moved;
  queue_.links->End();
  state_ = State::kStore;
  return true;
}

}  // namespace horocache::program
