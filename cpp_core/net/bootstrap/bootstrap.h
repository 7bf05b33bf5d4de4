// Start-up on one host: rank 0 listens on a Unix socket in a directory of mode 0700, checks every peer's credentials,
// compares handshakes, and sends every rank the arena and the pidfds of all ranks.
//
// A rank inherits only environment variables, so any launcher and any wrapper (bash -c, numactl, a container's init)
// will do. Rank 0 removes the socket when start-up ends, or later if the ranks may belong to two jobs
// (duplicate_rank_watch.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "net/bootstrap/launcher_environment.h"
#include "net/shm/arena.h"

namespace horocache::net {

// The values that must be equal on all ranks. If they differ, start-up fails on every rank with a table of the
// differences.
struct Handshake {
  std::string version;    // of horocache
  uint32_t protocol = 0;  // wire::kProtocolVersion
  uint32_t epoch = 0;     // number of earlier init() calls of this process in which the ranks met
  std::string agree;      // Knobs::AgreeText(): lines "name=value"
};

inline constexpr size_t kMaxAnnouncement = 256 << 10;  // bytes
// kInvalidArgument if the text is longer.
Status CheckAnnouncement(const std::string& announcement);

class DuplicateRankWatch;

// The result of start-up: the shared memory, and the processes of the job's ranks on this host.
struct Peers {
  std::shared_ptr<Arena> arena;
  std::vector<UniqueFd> pidfds;  // by rank, including this rank's
  std::vector<int> pids;         // by rank
  // Stream sockets. Rank 0 has one per rank (-1 for itself), the other ranks have only links[0], to rank 0. The kernel
  // closes a rank's sockets when it ends.
  std::vector<UniqueFd> links;
  std::string announcement;                        // rank 0's BootstrapConfig::announcement
  std::shared_ptr<DuplicateRankWatch> duplicates;  // on rank 0 if the ranks may belong to two jobs; else null

  // For the child of a fork: closes every descriptor and does nothing else. The arena's memory is not mapped in the
  // child: access to it is a segmentation fault, and destroying the Arena object is harmless.
  void CloseInChild();
};

struct BootstrapConfig {
  Identity identity;
  Handshake handshake;
  ArenaLayout layout;        // rank 0's is used on all ranks
  std::string announcement;  // rank 0's is given to all ranks; at most kMaxAnnouncement bytes
  std::string directory;     // of the socket; empty: OwnDirectory of TMPDIR or /tmp
  int64_t timeout_ns = 30'000'000'000;
  // The numbers that messages show for the ranks, by rank of this start-up; empty: the ranks themselves.
  std::vector<int> job_ranks = {};
  // Names the process set that the ranks connect to, for messages; empty: they connect to the job in init().
  std::string process_set = {};
  // Called several times a second; start-up ends with the returned status if it is not ok. May be null.
  std::function<Status()> check;
};

// horocache-<uid> below `base`: the directory that start-up creates, and removes when it is empty.
std::string OwnDirectory(const std::string& base);

// Returns when all ranks are connected, agree, and have mapped the arena; this rank has then set its state(rank) to
// kRunning. On every rank, kStartup names the missing ranks and kVersionSkew lists the values that differ. If two
// processes claim one rank, both get kStartup.
StatusOr<Peers> Bootstrap(const BootstrapConfig& config);

}  // namespace horocache::net
