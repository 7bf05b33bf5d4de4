// Runs a program with all its ranks in this process: to test it, to compare it, or to time it over simulated links.
//
// Uses the links and the executor of a job but no daemon, so it runs any collective, also those that a job does not
// offer. Each rank has a thread, or all ranks take turns on the calling thread in a seeded random order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "program/program.h"
#include "program/protocol.h"
#include "program/simulated_links.h"
#include "wire/message.h"

namespace horocache::program {

struct LocalRun {
  std::span<const std::byte> packed;  // the program
  DType dtype = DType::kFloat32;
  wire::ReduceOp reduce_op = wire::ReduceOp::kSum;
  int64_t elements = 0;  // per place, see Sizes
  Protocol protocol = Protocol::kSimple;
  int slots = 0;              // per connection; 0: a job's default
  int64_t message_bytes = 0;  // 0: a job's default
  int repetitions = 1;        // at least 1
  uint64_t seed = 0;          // 0: a thread per rank; else the seed of the order in which the ranks are polled
  int64_t patience_ns = 0;    // with threads: a rank that is idle and exceeds this time per repetition is stuck
  DelayModel delays;          // with threads only
  // By rank; a program in place uses one of the two. The sizes must be those of the program's buffers.
  std::vector<std::span<std::byte>> inputs, outputs;
};

// Returns the nanoseconds of each repetition, from the start of the first rank to the end of the last. Fails with
// kInvalidArgument if an argument or a buffer does not fit the program, and with kStall if the run is stuck, with the
// reason for which each thread block waits.
StatusOr<std::vector<int64_t>> RunLocally(const LocalRun& run);

}  // namespace horocache::program
