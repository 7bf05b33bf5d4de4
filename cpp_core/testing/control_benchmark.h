// What agreement costs: N controllers in one thread, one after the other, all submitting the same tensors step after
// step; CPU time of rank 0 and of the other ranks, messages and bytes, per step of the steady state.
//
// Times are CPU time of this thread around one rank's calls, so they are what each rank would spend, whatever the
// number of cores; they leave out what a network would add (latency, system calls, message matching).
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace horocache::testing {

struct ControlBenchmark {
  // An agreement of control/agreement.h, or "bits by messages": an AND by recursive doubling over frames, as MPI_BAND
  // does it, with Horovod's gather and broadcast for what the caches do not know.
  std::string strategy = "bits";
  int ranks = 2;
  int tensors = 161;
  bool cache = true;
  int steps = 5;  // measured, after those that fill the caches
  int radix = 4;
  int ranks_per_host = 8;  // of "leaders"
};

struct ControlCost {
  double coordinator_us = 0;  // CPU of rank 0, per step: the median over the steps
  double worker_us = 0;       // of the median other rank
  double first_step_us = 0;   // of rank 0, in the first step, when nothing is cached
  double messages = 0;        // per step, all ranks together
  double bytes = 0;
  double rounds = 0;
  double wall_s = 0;  // of the whole measurement
};

StatusOr<ControlCost> Measure(const ControlBenchmark& benchmark);

}  // namespace horocache::testing
