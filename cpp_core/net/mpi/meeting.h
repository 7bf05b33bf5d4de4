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

// What a rank says of itself when it meets the others.
struct Introduction {
  Handshake handshake;
  Host host;
};

// kStartup names the ranks that did not come, kVersionSkew the values that differ; the same on every rank that came.
// `waited_ns`: how long they have been waited for already.
StatusOr<Placement> MeetOverMpi(const Communicator& comm, const Introduction& own, int64_t timeout_ns,
                                const WaitCheck& check, int64_t waited_ns = 0);

// A copy of `comm`, of which all ranks are in init(). A collective does not tell who is missing, so if it takes too
// long the ranks that are here meet on `comm` itself: kStartup names the others.
StatusOr<Communicator> CopyForAll(Mpi* mpi, MpiComm comm, const Introduction& own, int64_t timeout_ns,
                                  const WaitCheck& check);

}  // namespace horocache::net
