// Measures the cost of agreement. N controllers run in one thread, one after the other, and all submit the same tensors
// in every step. Measures the CPU time of rank 0 and of the other ranks, messages and bytes, per step of the steady
// state.
//
// Times are this thread's CPU time around the calls of one rank. So they are the time that a rank would spend with any
// number of cores, without the cost of a network (latency, system calls, message matching).
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace horocache::testing {

struct ControlBenchmark {
  // A strategy of control/agreement.h, or "bits by messages": an AND-reduction of frames by recursive doubling, as
  // MPI_BAND does it, with Horovod's gather and broadcast for uncached requests.
  std::string strategy = "bits";
  int ranks = 2;
  int tensors = 161;
  bool cache = true;
  int steps = 5;  // measured steps, after the step that fills the caches
  int radix = 4;
  int ranks_per_host = 8;  // for "leaders"
};

struct ControlCost {
  double coordinator_us = 0;  // CPU time of rank 0 per step, median over the steps
  double worker_us = 0;       // the same for the median of the other ranks
  double first_step_us = 0;   // CPU time of rank 0 in the first step, when nothing is cached
  double messages = 0;        // per step, all ranks together
  double bytes = 0;
  double rounds = 0;
  double wall_s = 0;  // of the whole measurement
};

StatusOr<ControlCost> Measure(const ControlBenchmark& benchmark);

}  // namespace horocache::testing
