// Start-up on one host: rank 0 listens on a Unix socket in a directory of mode 0700, checks every peer's credentials,
// compares handshakes, and hands over the arena and everybody's pidfd.
//
// Nothing is inherited but environment variables, so any launcher and any wrapper (bash -c, numactl, a container's
// init) will do. The socket is unlinked as soon as all ranks are connected.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "net/arena.h"
#include "net/identity.h"

namespace horocache::net {

// What must be equal on all ranks, or start-up fails with a table of the differing values on every rank.
struct Handshake {
  std::string version;    // of horocache
  uint32_t protocol = 0;  // wire::kProtocolVersion
  uint32_t epoch = 0;     // how many times this process has called init()
  std::string agree;      // Knobs::AgreeText(): lines "name=value"
};

class LateClaims;

struct Peers {
  std::shared_ptr<Arena> arena;
  std::vector<UniqueFd> pidfds;  // by rank; this rank's too
  std::vector<int> pids;         // by rank
  std::vector<UniqueFd> links;   // stream sockets: on rank 0 one per rank (own: -1), elsewhere links[0] only; closed by
                                 // the kernel when a rank ends
  std::shared_ptr<LateClaims> late;  // on rank 0 of a job that may be two; null elsewhere

  // For the child of a fork: closes every descriptor with nothing but close(2). The arena's memory is not mapped in the
  // child at all; touching it there is a segmentation fault, and destroying the Arena object is harmless.
  void CloseInChild();
};

struct BootstrapConfig {
  Identity identity;
  Handshake handshake;
  ArenaLayout layout;     // rank 0's is used
  std::string directory;  // of the socket; empty: OwnDirectory of TMPDIR, or /tmp
  int64_t timeout_ns = 30'000'000'000;
  // How ranks read in messages, by their number here; empty: as they are.
  std::vector<int> job_ranks = {};
  // What they come to, where that is not init(): "the meeting of process set 2".
  std::string meeting = {};
  // Asked several times a second; start-up ends with what it says if that is not ok. May be null.
  std::function<Status()> check;
};

// horocache-<uid> below `base`: the directory that start-up makes, and removes when it is empty.
std::string OwnDirectory(const std::string& base);

// Returns when all ranks are connected, agree, and have mapped the arena; this one has set its state(rank) to kRunning.
// kStartup names the ranks that are missing, kVersionSkew the values that differ, on every rank. Two processes with one
// rank are kStartup on both.
StatusOr<Peers> Bootstrap(const BootstrapConfig& config);

}  // namespace horocache::net
