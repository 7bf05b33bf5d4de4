// Start-up over MPI: every rank tells rank 0 who it is and on which host, rank 0 compares, and tells everybody who is
// where, or why the job cannot start.
//
// After it, the ranks of each host meet once more on a Unix socket to share memory (bootstrap.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/bootstrap.h"
#include "net/host.h"
#include "net/mpi/communicator.h"

namespace horocache::net {

// Where every rank of the job is.
struct Placement {
  std::vector<int> host_of;             // by rank; hosts are numbered in the order of their first rank
  std::vector<std::string> host_names;  // by host
  std::string job;                      // a name of the job that no other has

  // Ranks of a host, ascending.
  std::vector<int> RanksOn(int host) const;
};

// kStartup names the ranks that did not come, kVersionSkew the values that differ; the same on every rank that came.
StatusOr<Placement> MeetOverMpi(const Communicator& comm, const Handshake& handshake, const Host& host,
                                int64_t timeout_ns);

}  // namespace horocache::net
