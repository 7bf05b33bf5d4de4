#include "net/bootstrap/common.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"

namespace horocache::net {
namespace {

// Interval between calls of BootstrapConfig::check.
constexpr int64_t kCheckNs = 100 * kNsPerMs;

}  // namespace

// Returns a number that is not a rank of this start-up unchanged: a peer may have sent it.
int StartupPhrases::Of(int rank) const {
  const bool known = rank >= 0 && rank < static_cast<int>(config_.job_ranks.size());
  return known ? config_.job_ranks[static_cast<size_t>(rank)] : rank;
}

std::string StartupPhrases::OfAll() const {
  return config_.job_ranks.empty() ? " of " + std::to_string(config_.identity.size) : "";
}

std::string StartupPhrases::Ranks(const std::vector<int>& ranks) const {
  std::vector<int> of_job;
  for (const int rank : ranks) of_job.push_back(Of(rank));
  return NameRanks(of_job) + OfAll();
}

Hello OwnHello(const BootstrapConfig& config) {
  Hello hello;
  hello.rank = static_cast<uint32_t>(config.identity.rank);
  hello.size = static_cast<uint32_t>(config.identity.size);
  hello.pid = static_cast<uint32_t>(getpid());
  hello.byte_order = OwnByteOrder();
  hello.job = config.identity.job;
  hello.handshake = config.handshake;
  return hello;
}

UniqueFd OpenPidfd(int pid) {
#ifndef SYS_pidfd_open
  constexpr long SYS_pidfd_open = 434;  // the same number on every architecture
#endif
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));  // the kernel sets close-on-exec
}

int64_t NextCheckNs(const BootstrapConfig& config) { return config.check ? NowNs() + kCheckNs : kNever; }

Status Check(const BootstrapConfig& config) { return config.check ? config.check() : Status::Ok(); }

int PollTimeoutMs(int64_t until_ns) {
  const int64_t left = until_ns - NowNs();
  return left <= 0 ? 0 : static_cast<int>(std::min<int64_t>((left + kNsPerMs - 1) / kNsPerMs, 1'000'000));
}

}  // namespace horocache::net
