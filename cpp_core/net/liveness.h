// One thread that watches the other ranks' pidfds and links, and says which rank is gone.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "net/bootstrap.h"

namespace horocache::net {

struct EndedRank {
  int rank;
  std::string how;  // as Liveness says it
};

// One look, for as long as no Liveness watches: the lowest rank that has ended and had not left.
std::optional<EndedRank> FindEnded(const Peers& peers);

class Liveness {
 public:
  // `on_lost(rank, how)` runs on the liveness thread, once per rank, within milliseconds of the rank's end; `how` says
  // what was seen ("exited without shutdown()", "was killed by signal 9", with the exit code where the kernel tells).
  // Not called for ranks that HasLeft.
  // `on_late(what)` runs there, too, when another process claims a rank of the job; see LateClaims.
  Liveness(Peers* peers, int rank, std::function<void(int rank, const std::string& how)> on_lost,
           std::function<void(const std::string& what)> on_late = nullptr);
  ~Liveness();  // stops and joins

  // For the child of a fork, where the thread does not exist: closes the descriptors. The object is then to be leaked.
  void CloseInChild();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace horocache::net
