// Bootstrap over MPI. Every rank sends its identity and its host to rank 0. Rank 0 compares the handshakes and answers
// every rank with the placement of all ranks, or with the reason why the job cannot start.
//
// After it, the ranks of each host connect over a Unix socket to share memory (bootstrap.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/bootstrap/bootstrap.h"
#include "net/bootstrap/host.h"
#include "net/mpi/communicator.h"

namespace horocache::net {

// The hosts of all ranks of the job.
struct Placement {
  std::vector<int> host_of;             // by rank; hosts are numbered in the order of their first rank
  std::vector<std::string> host_names;  // by host
  std::string job;                      // unique name of the job
  std::string announcement;             // rank 0's

  // Ranks of `host`, ascending.
  std::vector<int> RanksOn(int host) const;
};

// The data that a rank sends to rank 0 in the bootstrap.
struct Introduction {
  Handshake handshake;
  Host host;
  std::string announcement;  // of rank 0, which gives it to all ranks; at most kMaxAnnouncement bytes
};

// Runs the bootstrap; all ranks of `comm` call it. kStartup names the ranks that did not come, kVersionSkew the values
// that differ; every rank that came gets the same error. `waited_ns`: how long the ranks have been waited for before
// the call, for the message.
StatusOr<Placement> BootstrapOverMpi(const Communicator& comm, const Introduction& own, int64_t timeout_ns,
                                     const WaitCheck& check, int64_t waited_ns = 0);

// A copy of `comm`, made by all its ranks, which are all in init(). A collective does not tell which ranks are missing.
// So if the duplication takes too long, the ranks that are here run the bootstrap on `comm` itself: kStartup names the
// missing ranks.
StatusOr<Communicator> CopyForAll(Mpi* mpi, MpiComm comm, const Introduction& own, int64_t timeout_ns,
                                  const WaitCheck& check);

}  // namespace horocache::net
