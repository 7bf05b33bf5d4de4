// Small things that both halves of start-up use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "net/bootstrap.h"
#include "net/handshake.h"

namespace horocache::net {

// How ranks read in messages, and what they come to: init(), or the meeting of a process set.
class MeetingWords {
 public:
  explicit MeetingWords(const BootstrapConfig& config) : config_(config) {}

  std::string Rank(int rank) const { return NameRanks({Of(rank)}) + OfAll(); }  // "rank 3 of 4"
  std::string Ranks(const std::vector<int>& ranks) const;
  // Without the number of all.
  std::string Name(int rank) const { return NameRanks({Of(rank)}); }
  std::string Come() const { return config_.meeting.empty() ? "call init()" : "come to " + config_.meeting; }
  std::string Came() const { return config_.meeting.empty() ? "called init()" : "came to " + config_.meeting; }
  std::string Before() const { return "before " + (config_.meeting.empty() ? "init()" : config_.meeting); }

 private:
  int Of(int rank) const;
  std::string OfAll() const;

  const BootstrapConfig& config_;
};

Hello OwnHello(const BootstrapConfig& config);
UniqueFd OpenPidfd(int pid);          // -1 where the kernel has none or a container forbids it
int PollTimeoutMs(int64_t until_ns);  // rounded up, so that the time has come when poll returns

// How long start-up may wait before it asks BootstrapConfig::check again; and the question.
int64_t NextCheckNs(const BootstrapConfig& config);
Status Check(const BootstrapConfig& config);

}  // namespace horocache::net
