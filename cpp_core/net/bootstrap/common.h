// Helpers that rank 0's side of start-up and the other ranks' side share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "net/bootstrap/bootstrap.h"
#include "net/bootstrap/handshake.h"

namespace horocache::net {

// Phrases for messages: the names of ranks, and the event that they start up for, init() or a process set.
class StartupPhrases {
 public:
  explicit StartupPhrases(const BootstrapConfig& config) : config_(config) {}

  std::string Rank(int rank) const { return NameRanks({Of(rank)}) + OfAll(); }  // "rank 3 of 4"
  std::string Ranks(const std::vector<int>& ranks) const;
  // Without the number of all ranks.
  std::string Name(int rank) const { return NameRanks({Of(rank)}); }
  std::string Come() const { return config_.process_set.empty() ? "call init()" : "connect to " + config_.process_set; }
  std::string Came() const {
    return config_.process_set.empty() ? "called init()" : "connected to " + config_.process_set;
  }
  std::string Before() const {
    return config_.process_set.empty() ? "before init()" : "before it connects to " + config_.process_set;
  }

 private:
  int Of(int rank) const;
  std::string OfAll() const;

  const BootstrapConfig& config_;
};

Hello OwnHello(const BootstrapConfig& config);
UniqueFd OpenPidfd(int pid);          // -1 if the kernel has no pidfds or a container forbids them
int PollTimeoutMs(int64_t until_ns);  // rounded up, so that the time has passed when poll returns

// When BootstrapConfig::check is due next; kNever without one.
int64_t NextCheckNs(const BootstrapConfig& config);
// Calls BootstrapConfig::check; ok without one.
Status Check(const BootstrapConfig& config);

}  // namespace horocache::net
