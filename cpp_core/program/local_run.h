// Runs a program with all its ranks in this process: to try it, to compare it, to time it over links that are slower.
//
// The same links and the same executor as in a job; no daemon, so any collective runs, also those that are no operation
// of a job. With a thread for each rank, or on the calling thread in an order that a seed determines.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "program/delayed_links.h"
#include "program/program.h"
#include "program/protocol.h"
#include "wire/message.h"

namespace horocache::program {

struct LocalRun {
  std::span<const std::byte> packed;  // the program
  DType dtype = DType::kFloat32;
  wire::ReduceOp reduce_op = wire::ReduceOp::kSum;
  int64_t elements = 0;  // in one place, see Sizes
  Protocol protocol = Protocol::kSimple;
  int slots = 0;              // 0: as a job takes where the program does not say
  int64_t message_bytes = 0;  // the same
  int repetitions = 1;        // at least 1
  uint64_t seed = 0;          // 0: threads; else the ranks are polled in an order by chance
  int64_t patience_ns = 0;    // for one repetition
  DelayModel delays;          // of the threads' links
  // By rank: its input and output; in place one of the two. As many bytes as the program's buffers have.
  std::vector<std::span<std::byte>> inputs, outputs;
};

// Nanoseconds of each repetition, from the first rank's start to the last one's end. kInvalidArgument for buffers that
// do not fit, kStall with what every strand waits for if it is stuck.
StatusOr<std::vector<int64_t>> RunLocally(const LocalRun& run);

}  // namespace horocache::program
