// A compiled collective, as Python's compiler (horocache/lang) packs it: for each rank, strands of steps.
//
// Note [Programs in memory]
// Python proves a program, and packs it as little-endian words of 64 bits (horocache/lang/packed.py). The decoder here
// believes none of them: every number is checked, so that running a program never leaves its buffers, whatever it
// computes. That it computes what it promises, without a deadlock or a race, is what Python proved; a program that was
// damaged on the way hangs at worst, and then runs into its deadline.
//
// Chunks are counted in fine chunks: each of the collective's chunks is divided into `refinement`. What a step does is
// said in horocache/lang/instructions.py.
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

// Takes a message, sends one, adds to its destination, stores there.
bool Pops(StepOp op);
bool Pushes(StepOp op);
bool Reduces(StepOp op);
bool Stores(StepOp op);
// Reads its source from memory.
bool ReadsSource(StepOp op);

inline constexpr int kInput = 0;
inline constexpr int kOutput = 1;  // buffers behind it are scratch

struct Place {
  int32_t buffer = -1;  // -1: none
  int64_t index = 0;    // fine chunk
};

struct Wait {
  int32_t strand = 0;
  int32_t step = 0;
};

struct Step {
  StepOp op = StepOp::kSend;
  int32_t size_class = 0;  // of the chunk in which the first fine chunk lies
  int64_t count = 0;       // fine chunks
  bool finishes = false;   // it makes finished sums, which are scaled here
  Place source, destination;
  uint32_t first_wait = 0, num_waits = 0;  // in RankProgram::waits
};

struct Strand {
  int32_t send = -1, receive = -1;  // ranks; -1: none
  int32_t channel = 0;
  uint32_t first_step = 0, num_steps = 0;  // in RankProgram::steps
};

struct RankProgram {
  std::vector<int64_t> extents;  // fine chunks of each buffer
  std::vector<Strand> strands;
  std::vector<Step> steps;
  std::vector<Wait> waits;
};

struct Program {
  int32_t ranks = 0;
  int32_t classes = 1;                // sizes that chunks can have
  int32_t refinement = 1;             // fine chunks in a chunk
  bool in_place = false;              // input and output are one buffer: whichever has an extent
  bool uniform = false;               // all chunks have one size
  int32_t min_slots = 1;              // with fewer it would hang
  int64_t most_count = 1;             // fine chunks of a step
  bool marks_finished = false;        // all sums are finished at steps that say so
  std::vector<RankProgram> programs;  // by rank
};

inline constexpr uint64_t kProgramMagic = 0x31474f5250434348;  // "HCCPROG1"
inline constexpr int64_t kMaxProgramRanks = 4096;
inline constexpr int64_t kMaxProgramSteps = 500000;
inline constexpr int64_t kMaxProgramChunks = 1 << 24;  // fine chunks, of all buffers or of all steps

// kCorrupt, naming rank, strand and step, if a number cannot be.
StatusOr<Program> DecodeProgram(std::span<const std::byte> bytes);

}  // namespace horocache::program
