// How far apart the clocks of the job's hosts are.
//
// CLOCK_MONOTONIC is one clock on a host, and starts anywhere on another. The first rank of each host asks rank 0 for
// its time, several times: the answer was given at some moment between the question and its arrival, so the quickest
// answer tells the difference best, and half the time that it took bounds the error (Cristian, 1989).
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "net/mpi/communicator.h"

namespace horocache::net {

struct ClockOffset {
  int64_t offset_ns = 0;    // to be added to this host's times to get those of rank 0's
  int64_t error_ns = 0;     // at most so far off, when it was measured; 0 on rank 0's host
  int64_t measured_ns = 0;  // when, by this host's clock
};

// All ranks call it at the same time. `host_of`: by rank. kStartup names a rank that has not answered in time.
StatusOr<ClockOffset> MeasureClock(const Communicator& comm, const std::vector<int>& host_of, int64_t timeout_ns,
                                   const WaitCheck& check);

}  // namespace horocache::net
