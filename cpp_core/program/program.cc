#include "program/program.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "program/word_reader.h"

namespace horocache::program {
namespace {

std::string Where(int64_t rank, int64_t thread_block) {
  return "rank " + std::to_string(rank) + " thread block " + std::to_string(thread_block) + ": ";
}

std::string Where(int64_t rank, int64_t thread_block, int64_t step) {
  return "rank " + std::to_string(rank) + " thread block " + std::to_string(thread_block) + " step " +
         std::to_string(step) + ": ";
}

// Limits over all ranks, counted down while ranks are decoded.
struct Budget {
  int64_t steps = kMaxProgramSteps;
  int64_t held = kMaxProgramChunks;   // fine chunks of buffers
  int64_t moved = kMaxProgramChunks;  // fine chunks of steps
};

Place TakePlace(Words* in, const RankProgram& program, int64_t count, bool wanted, const char* what) {
  Place place;
  place.buffer = in->TakeAs<int32_t>(-1, static_cast<int64_t>(program.extents.size()) - 1, what);
  place.index = in->Take(0, kMaxProgramChunks, what);
  if (!in->ok()) return {};
  if ((place.buffer >= 0) != wanted) {
    in->Fail(std::string(what) + (wanted ? " is missing" : " is given for a step that has none"));
    return {};
  }
  if (wanted && place.index > program.extents[static_cast<size_t>(place.buffer)] - count) {
    in->Fail(std::string(what) + " is outside of its buffer");
  }
  return place;
}

// Fails if a place in an input or output is sized for another class: a chunk of the step's class may be larger. Scratch
// has room for every class.
void CheckClass(Words* in, const Program& whole, const Step& step, const Place& place, const char* what) {
  const bool fixed = place.buffer == kInput || place.buffer == kOutput;
  if (whole.uniform || !fixed || place.index / whole.refinement % whole.classes == step.size_class) return;
  in->Fail(std::string(what) + " has chunks of another size class");
}

void TakeStep(Words* in, const Program& whole, RankProgram* program, Budget* budget) {
  Step step;
  const auto op = in->TakeAs<int>(0, 2 * kNumStepOps - 1, "the operation");
  step.op = static_cast<StepOp>(op % kNumStepOps);
  step.finishes = op >= kNumStepOps;
  step.size_class = in->TakeAs<int32_t>(0, whole.classes - 1, "the size class");
  step.count = in->Take(1, kMaxProgramChunks, "the count");
  if (step.finishes && !Reduces(step.op)) in->Fail("it finishes sums, and makes none");
  budget->moved -= step.count;
  if (budget->moved < 0) in->Fail("the steps have too many chunks in all");
  step.source = TakePlace(in, *program, step.count, ReadsSource(step.op), "the source");
  step.destination = TakePlace(in, *program, step.count, step.op != StepOp::kSend, "the destination");
  CheckClass(in, whole, step, step.source, "the source");
  CheckClass(in, whole, step, step.destination, "the destination");
  const bool both = step.source.buffer >= 0 && step.destination.buffer >= 0;
  if (both && (step.source.index - step.destination.index) % whole.refinement != 0) {
    in->Fail("source and destination begin at other parts of a chunk");
  }
  const int64_t apart = step.source.index - step.destination.index;
  if (both && step.source.buffer == step.destination.buffer && apart < step.count && -apart < step.count) {
    in->Fail("source and destination overlap");
  }
  step.first_wait = static_cast<uint32_t>(program->waits.size());
  step.num_waits = static_cast<uint32_t>(in->Count(kMaxProgramSteps, 2, "the number of waits"));
  for (uint32_t i = 0; i < step.num_waits && in->ok(); ++i) {
    Wait wait;
    wait.thread_block = in->TakeAs<int32_t>(0, kMaxProgramSteps, "the thread block of a wait");
    wait.step = in->TakeAs<int32_t>(0, kMaxProgramSteps, "the step of a wait");
    program->waits.push_back(wait);
  }
  program->steps.push_back(step);
}

void TakeThreadBlock(Words* in, const Program& whole, int64_t rank, int64_t number, RankProgram* program,
                     Budget* budget) {
  in->At(Where(rank, number));
  ThreadBlock thread_block;
  thread_block.send = in->TakeAs<int32_t>(-1, whole.ranks - 1, "the rank that it sends to");
  thread_block.receive = in->TakeAs<int32_t>(-1, whole.ranks - 1, "the rank that it receives from");
  if (thread_block.send == rank || thread_block.receive == rank) in->Fail("a rank has no connection with itself");
  thread_block.channel = in->TakeAs<int32_t>(0, 1 << 16, "the channel");
  thread_block.first_step = static_cast<uint32_t>(program->steps.size());
  thread_block.num_steps = static_cast<uint32_t>(in->Count(budget->steps, 8, "the number of steps"));
  budget->steps -= thread_block.num_steps;
  for (uint32_t i = 0; i < thread_block.num_steps && in->ok(); ++i) {
    in->At(Where(rank, number, i));
    TakeStep(in, whole, program, budget);
    const StepOp op = program->steps.back().op;
    if (Pops(op) && thread_block.receive < 0) in->Fail("it receives, and the thread block does not");
    if (Pushes(op) && thread_block.send < 0) in->Fail("it sends, and the thread block does not");
  }
  program->thread_blocks.push_back(thread_block);
}

// Fails if a wait names its own thread block, or a thread block or step that does not exist.
void CheckWaits(Words* in, int64_t rank, const RankProgram& program) {
  for (size_t s = 0; s < program.thread_blocks.size(); ++s) {
    const ThreadBlock& thread_block = program.thread_blocks[s];
    for (uint32_t i = 0; i < thread_block.num_steps; ++i) {
      const Step& step = program.steps[thread_block.first_step + i];
      for (uint32_t w = 0; w < step.num_waits; ++w) {
        const Wait& wait = program.waits[step.first_wait + w];
        const auto other = static_cast<size_t>(wait.thread_block);
        const bool there = other < program.thread_blocks.size() &&
                           static_cast<uint32_t>(wait.step) < program.thread_blocks[other].num_steps;
        if (there && other != s) continue;
        in->At(Where(rank, static_cast<int64_t>(s), i));
        in->Fail(there ? "it waits for its own thread block" : "it waits for a step that is not there");
      }
    }
  }
}

RankProgram TakeRank(Words* in, const Program& whole, int64_t rank, Budget* budget) {
  RankProgram program;
  in->At("rank " + std::to_string(rank) + ": ");
  const int64_t buffers = in->Count(kMaxProgramChunks, 1, "the number of buffers");
  if (buffers < 2) in->Fail("input and output are missing");
  for (int64_t i = 0; i < buffers && in->ok(); ++i) {
    program.extents.push_back(in->Take(0, budget->held, "the size of a buffer"));
    budget->held -= program.extents.back();
  }
  const int64_t thread_blocks = in->Count(kMaxProgramSteps, 4, "the number of thread blocks");
  for (int64_t i = 0; i < thread_blocks && in->ok(); ++i) TakeThreadBlock(in, whole, rank, i, &program, budget);
  if (in->ok()) CheckWaits(in, rank, program);
  return program;
}

// The properties of a message that both ends must agree on: its number of fine chunks, the size class of the first one
// and the position of the first one within its chunk.
using Shape = std::tuple<int64_t, int32_t, int64_t>;

Shape ShapeOf(const Program& program, const Step& step) {
  const Place& place = step.destination.buffer >= 0 ? step.destination : step.source;
  return {step.count, step.size_class, place.index % program.refinement};
}

struct Ends {
  std::vector<Shape> pushes, pops;
  bool sent = false, received = false;  // true if a thread block has this end
};
using ConnectionEnds = std::map<std::tuple<int32_t, int32_t, int32_t>, Ends>;  // by sender, receiver and channel

bool AddThreadBlock(Words* in, const Program& program, int32_t rank, const ThreadBlock& thread_block,
                    ConnectionEnds* connections) {
  const RankProgram& mine = program.programs[static_cast<size_t>(rank)];
  Ends unused;
  Ends& out = thread_block.send < 0 ? unused : (*connections)[{rank, thread_block.send, thread_block.channel}];
  if (std::exchange(out.sent, true)) {
    in->Fail("two thread blocks of rank " + std::to_string(rank) + " send on one connection");
    return false;
  }
  Ends none;
  Ends& from = thread_block.receive < 0 ? none : (*connections)[{thread_block.receive, rank, thread_block.channel}];
  if (std::exchange(from.received, true)) {
    in->Fail("two thread blocks of rank " + std::to_string(rank) + " receive on one connection");
    return false;
  }
  for (uint32_t i = 0; i < thread_block.num_steps; ++i) {
    const Step& step = mine.steps[thread_block.first_step + i];
    if (Pushes(step.op)) out.pushes.push_back(ShapeOf(program, step));
    if (Pops(step.op)) from.pops.push_back(ShapeOf(program, step));
  }
  return true;
}

// Fails unless every connection has one thread block at each end, and both ends have the same messages of the same
// shapes.
void CheckConnections(Words* in, const Program& program) {
  ConnectionEnds connections;
  for (int32_t rank = 0; rank < program.ranks; ++rank) {
    for (const ThreadBlock& thread_block : program.programs[static_cast<size_t>(rank)].thread_blocks) {
      if (!AddThreadBlock(in, program, rank, thread_block, &connections)) return;
    }
  }
  for (const auto& [key, ends] : connections) {
    if (ends.pushes == ends.pops && ends.sent && ends.received) continue;
    const auto& [source, destination, channel] = key;
    return in->Fail("rank " + std::to_string(source) + " sends " + std::to_string(ends.pushes.size()) +
                    " messages to rank " + std::to_string(destination) + " on channel " + std::to_string(channel) +
                    ", which takes " + std::to_string(ends.pops.size()) +
                    (ends.pushes.size() == ends.pops.size() ? ", of other shapes" : ""));
  }
}

}  // namespace

bool Pops(StepOp op) { return op == StepOp::kReceive || op >= StepOp::kReceiveReduceCopy; }
bool Pushes(StepOp op) { return op == StepOp::kSend || op >= StepOp::kReceiveCopySend; }
bool Reduces(StepOp op) {
  return op == StepOp::kReduce || op == StepOp::kReceiveReduceCopy || op >= StepOp::kReceiveReduceSend;
}
bool Stores(StepOp op) { return op != StepOp::kSend && op != StepOp::kReceiveReduceSend; }
bool ReadsSource(StepOp op) { return op == StepOp::kSend || op == StepOp::kCopy || op == StepOp::kReduce; }

StatusOr<Program> DecodeProgram(std::span<const std::byte> bytes) {
  Words in(bytes);
  Program program;
  const auto magic = static_cast<int64_t>(kProgramMagic);
  in.Take(magic, magic, "the first word");
  program.ranks = in.TakeAs<int32_t>(1, kMaxProgramRanks, "the number of ranks");
  program.classes = in.TakeAs<int32_t>(1, kMaxProgramChunks, "the number of size classes");
  program.refinement = in.TakeAs<int32_t>(1, 1 << 10, "the refinement");
  program.in_place = in.Take(0, 1, "in place") != 0;
  program.uniform = in.Take(0, 1, "uniform") != 0;
  program.min_slots = in.TakeAs<int32_t>(1, 8, "the number of slots");
  Budget budget;
  for (int32_t rank = 0; rank < program.ranks && in.ok(); ++rank) {
    program.programs.push_back(TakeRank(&in, program, rank, &budget));
  }
  in.At("");
  if (in.ok()) CheckConnections(&in, program);
  if (in.ok() && !in.at_end()) in.Fail("there is more behind its end");
  for (const RankProgram& one : program.programs) {
    for (const Step& step : one.steps) {
      program.most_count = std::max(program.most_count, step.count);
      program.marks_finished |= step.finishes;
    }
  }
  if (in.ok()) return program;
  return Status(StatusCode::kCorrupt, "a program of " + std::to_string(bytes.size()) + " bytes cannot be run: " +
                                          in.error() + ". Compile it again with this version of horocache.");
}

}  // namespace horocache::program
