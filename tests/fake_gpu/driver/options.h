// Options of the fakes, from the environment; broken rules; the counts of calls.
//
//   FAKE_GPU_DEVICES=n       devices; 1
//   FAKE_GPU_MEMORY=bytes    memory of a device; 8 GiB
//   FAKE_GPU_SEED=n          no threads: calls move the streams' work, in an order drawn from the seed
//   FAKE_GPU_DELAY_US=n      each piece of work begins up to n us late, drawn from the seed 0 or FAKE_GPU_SEED
//   FAKE_GPU_STRICT=0        a broken rule is only counted; by default it ends the process
//   FAKE_GPU_FAULTS=plan     function:nth:code[@rank], with commas; the nth call (from 1) returns the code, or, with
//                            code hang, never returns, or, with code late, returns 3 s later. For NCCL's functions
//                            @rank means that rank of the communicator only. `work` in place of a function fails the
//                            nth piece of work of a stream, which spoils the context; `async` the nth collective.
//   FAKE_GPU_LEDGER=path     at exit, what still exists is written to this file as JSON
//   FAKE_CUDA_VERSION=n      13000
//   FAKE_NCCL_...            see nccl/communicator.h
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "driver/abi.h"

namespace fake_gpu {

struct FAKE_GPU_INTERNAL Options {
  int devices = 1;
  uint64_t memory = uint64_t{8} << 30;
  bool stepper = false;
  uint64_t seed = 0;
  int64_t delay_us = 0;
  bool strict = true;
  std::string ledger;
  int version = 13000;
};

FAKE_GPU_INTERNAL const Options& options();
// An environment variable as a number; `otherwise` if it is not set. Ends the process if it is not a number.
FAKE_GPU_INTERNAL int64_t Number(const char* variable, int64_t otherwise);

// A call broke a rule of the real library that the real one does not check. Counts it, and ends the process in strict
// mode; `text` says who did what.
FAKE_GPU_INTERNAL void BreakRule(const std::string& text);

// Codes of planned faults that a code of the libraries cannot be.
inline constexpr Code kHang = -1;
inline constexpr Code kLate = -2;
// The fault that is planned for this call of `function`, which is the next one: counts it.
FAKE_GPU_INTERNAL std::optional<Code> PlannedFault(std::string_view function, int rank = -1);

// Counts calls of a function of the libraries; the counts are read by fake_gpu_count.
FAKE_GPU_INTERNAL void CountCall(const char* function);

// True once the process has begun to exit: the real libraries refuse all calls then.
FAKE_GPU_INTERNAL bool Exiting();

}  // namespace fake_gpu
