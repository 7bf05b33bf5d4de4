// Measures how far the clocks of the job's hosts are apart.
//
// The processes of one host share CLOCK_MONOTONIC; on another host it has another origin. The first rank of each host
// asks rank 0 for its time, several times. Rank 0 reads its clock at some moment between the question and the arrival
// of its answer, so the quickest answer gives the best estimate, and half of its round-trip time bounds the error
// (Cristian, 1989). Example: a rank asks at 100 us and gets the answer "5,040 us" at 120 us. The midpoint is 110 us, so
// the offset is 4,930 us, with an error of at most 10 us.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "net/mpi/communicator.h"

namespace horocache::net {

struct ClockOffset {
  int64_t offset_ns = 0;    // add it to a time of this host to get the time of rank 0's host
  int64_t error_ns = 0;     // bounds the error of the offset when it was measured; 0 on rank 0's host
  int64_t measured_ns = 0;  // when the offset was measured, by this host's clock
};

// All ranks call it at the same time. `host_of`: the host number of each rank. kStartup names a rank that has not
// answered in time.
StatusOr<ClockOffset> MeasureClock(const Communicator& comm, const std::vector<int>& host_of, int64_t timeout_ns,
                                   const WaitCheck& check);

}  // namespace horocache::net
