// The peer monitor: one thread that watches the other ranks' pidfds and links, and reports which rank is gone.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "net/bootstrap/bootstrap.h"

namespace horocache::net {

struct EndedRank {
  int rank;         // on this host
  std::string how;  // as for PeerMonitor's on_lost
};

// Checks once, for use while no PeerMonitor runs: the lowest rank that has ended without leaving.
std::optional<EndedRank> FindEnded(const Peers& peers);

class PeerMonitor {
 public:
  // `peers` outlives this object. `on_lost(local_rank, how)` runs on the monitor thread, once per rank of the host,
  // within milliseconds of the rank's end. `how` says what was seen ("exited without shutdown()", "was killed by signal
  // 9", with the exit code if the kernel shows it). Not called for ranks that have left (HasLeft).
  // `on_duplicate(what)` runs on the same thread, when another process claims a rank of the job; see
  // DuplicateRankWatch.
  PeerMonitor(Peers* peers, int local_rank, std::function<void(int local_rank, const std::string& how)> on_lost,
              std::function<void(const std::string& what)> on_duplicate = nullptr);
  ~PeerMonitor();  // stops and joins the thread

  // For the child of a fork, where the thread does not exist: closes the descriptors. The caller then leaks the object.
  void CloseInChild();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace horocache::net
