// A hand-written program.
#pragma once

#include <cstdint>

#include "program/program.h"

namespace horocache::program {

inline Step MakeStep(StepOp op, int64_t chunk, int32_t refinement) {
  Step step;
  step.op = op;
  step.size_class = static_cast<int32_t>(chunk);
  step.count = refinement;
  (op == StepOp::kSend ? step.source : step.destination) = {kInput, chunk * refinement};
  return step;
}

// An allreduce in place by a ring of merged steps, with one thread block per rank.
inline Program Ring(int ranks, int32_t refinement) {
  Program program;
  program.ranks = program.classes = ranks;
  program.refinement = refinement;
  program.in_place = true;
  program.most_count = refinement;
  for (int rank = 0; rank < ranks; ++rank) {
    RankProgram one;
    one.extents = {int64_t{ranks} * refinement, 0};
    for (int turn = 0; turn < 2 * ranks - 1; ++turn) {
      const StepOp op = turn == 0              ? StepOp::kSend
                        : turn < ranks - 1     ? StepOp::kReceiveReduceSend
                        : turn == ranks - 1    ? StepOp::kReceiveReduceCopySend
                        : turn < 2 * ranks - 2 ? StepOp::kReceiveCopySend
                                               : StepOp::kReceive;
      one.steps.push_back(MakeStep(op, (rank - turn - 1 + 2 * ranks) % ranks, refinement));
    }
    ThreadBlock thread_block;
    thread_block.send = (rank + 1) % ranks;
    thread_block.receive = (rank - 1 + ranks) % ranks;
    thread_block.num_steps = static_cast<uint32_t>(one.steps.size());
    one.thread_blocks.push_back(thread_block);
    program.programs.push_back(one);
  }
  return program;
}

}  // namespace horocache::program
