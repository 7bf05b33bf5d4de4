// A compiled collective, as Python's compiler (horocache/lang) packs it: for each rank, thread blocks of steps.
//
// A thread block (MSCCL's term, `ThreadBlock` in the code) runs its steps in order, sends to at most one rank and
// receives from at most one.
//
// Note [Programs in memory]
// Python proves a program and packs it as little-endian 64-bit words (horocache/lang/formats/core_words.py). The
// decoder trusts none of them: it checks every number, so a running program never leaves its buffers, even if it
// computes wrong values. Python's proof covers the rest: the program meets its specification, without deadlocks and
// races. A program that was damaged after the proof hangs at worst, until its deadline.
//
// Indexes and counts are in fine chunks: each chunk of the collective is divided into `refinement` fine chunks.
// horocache/lang/program/instruction_dag.py defines the kinds of steps.
//
// Values; no I/O, no threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace horocache::program {

enum class StepOp : uint8_t {
  kSend,
  kReceive,
  kCopy,
  kReduce,
  kReceiveReduceCopy,
  kReceiveCopySend,
  kReceiveReduceSend,
  kReceiveReduceCopySend,
};
inline constexpr int kNumStepOps = 8;

// True if the step takes a message from its connection.
bool Pops(StepOp op);
// True if the step sends a message.
bool Pushes(StepOp op);
// True if the step reduces its operand with the value at its destination.
bool Reduces(StepOp op);
// True if the step stores into its destination.
bool Stores(StepOp op);
// True if the step reads its source from memory.
bool ReadsSource(StepOp op);

inline constexpr int kInput = 0;
inline constexpr int kOutput = 1;  // higher numbers are scratch buffers

struct Place {
  int32_t buffer = -1;  // -1: none
  int64_t index = 0;    // fine chunk
};

// The waiting step runs after step `step` of thread block `thread_block` of the same rank.
struct Wait {
  int32_t thread_block = 0;
  int32_t step = 0;
};

struct Step {
  StepOp op = StepOp::kSend;
  int32_t size_class = 0;  // of the chunk that contains the first fine chunk
  int64_t count = 0;       // fine chunks
  bool finishes = false;   // true if the step completes sums, which it then scales
  Place source, destination;
  uint32_t first_wait = 0, num_waits = 0;  // in RankProgram::waits
};

struct ThreadBlock {
  int32_t send = -1, receive = -1;  // ranks; -1: none
  int32_t channel = 0;
  uint32_t first_step = 0, num_steps = 0;  // in RankProgram::steps
};

struct RankProgram {
  std::vector<int64_t> extents;  // fine chunks of each buffer
  std::vector<ThreadBlock> thread_blocks;
  std::vector<Step> steps;
  std::vector<Wait> waits;
};

struct Program {
  int32_t ranks = 0;
  int32_t classes = 1;                // number of size classes of chunks
  int32_t refinement = 1;             // fine chunks per chunk
  bool in_place = false;              // true if input and output are one buffer, the one with a nonzero extent
  bool uniform = false;               // true if all chunks must have the same size
  int32_t min_slots = 1;              // slots per connection; the program may deadlock with fewer
  int64_t most_count = 1;             // largest Step::count
  bool marks_finished = false;        // true if all sums are completed by steps with `finishes`
  std::vector<RankProgram> programs;  // by rank
};

inline constexpr uint64_t kProgramMagic = 0x31474f5250434348;  // "HCCPROG1"
inline constexpr int64_t kMaxProgramRanks = 4096;
inline constexpr int64_t kMaxProgramSteps = 500000;
inline constexpr int64_t kMaxProgramChunks = 1 << 24;  // fine chunks: of all buffers together, and of all steps

// Returns kCorrupt with rank, thread block and step if a number is invalid.
StatusOr<Program> DecodeProgram(std::span<const std::byte> bytes);

}  // namespace horocache::program
