#include "net/liveness.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/thread.h"
#include "net/exit_info.h"
#include "net/late_claims.h"

namespace horocache::net {
namespace {

// A link closes a moment before its process's pidfd says how the process ended.
constexpr int64_t kPidfdFollowsNs = 100 * kNsPerMs;
// A rank that ends after it has seen a loss is reported later than what it has seen.
constexpr int64_t kCauseFirstNs = 500 * kNsPerMs;
constexpr int64_t kLookNs = 100 * kNsPerMs;
constexpr const char* kClosed = "closed its connection without shutdown()";

// What rank 0 tells the others over the links about a rank that is gone; they may have no pidfd of it.
struct Notice {
  uint32_t rank;
  std::array<char, 124> how;  // ends with zeros
};
static_assert(sizeof(Notice) == 128);

}  // namespace

// Everything but `stopping` and the eventfd belongs to the thread.
struct Liveness::Impl {
  Impl(Peers* peers_in, int rank_in, std::function<void(int, const std::string&)> on_lost_in,
       std::function<void(const std::string&)> on_late_in)
      : peers(peers_in),
        rank(rank_in),
        on_lost(std::move(on_lost_in)),
        on_late(std::move(on_late_in)),
        stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    const size_t size = peers->pids.size();
    done.resize(size, false);
    done[static_cast<size_t>(rank)] = true;
    later.resize(size);
    linked.resize(size, false);
    ended.resize(size, false);
    received.resize(size);
    for (size_t r = 0; r < size; ++r) linked[r] = Link(r) >= 0;
  }

  int Link(size_t r) const {
    if (rank != 0) return r == 0 && !peers->links.empty() ? peers->links[0].get() : -1;
    return r < peers->links.size() ? peers->links[r].get() : -1;
  }

  void Run();
  int TimeoutMs() const;
  void LookAt(size_t r, bool has_ended, bool spoke);
  void OnLate(bool somebody);
  void OnPidfd(size_t r);
  void OnLink(size_t r);
  void OnNotice(const Notice& notice);
  void OnClosed(size_t r);
  void Gone(size_t r, const std::string& how);
  void TellOthers(size_t r, const std::string& how);

  Peers* const peers;
  const int rank;
  const std::function<void(int, const std::string&)> on_lost;
  const std::function<void(const std::string&)> on_late;
  std::atomic<bool> stopping{false};
  UniqueFd stop;           // -1 if there were no descriptors left: then the thread looks up
  std::vector<bool> done;  // by rank: gone, or left, or this one
  struct Later {
    int64_t at_ns;
    std::string how;
  };
  std::vector<std::optional<Later>> later;  // by rank: what to report then if nothing better is known
  std::vector<bool> ended;                  // by rank: its pidfd has said so
  std::vector<bool> linked;                 // by rank: its link is open
  std::vector<std::string> received;        // by rank: a part of a notice
  NamedThread thread;                       // last: joined before the rest goes
};

void Liveness::Impl::Run() {
  std::vector<pollfd> polled;
  while (true) {
    polled.assign(1, {stop.get(), POLLIN, 0});
    for (size_t r = 0; r < done.size(); ++r) {
      polled.push_back({done[r] || ended[r] ? -1 : peers->pidfds[r].get(), POLLIN, 0});
      polled.push_back({linked[r] ? Link(r) : -1, POLLIN, 0});
    }
    polled.push_back({peers->late != nullptr ? peers->late->fd() : -1, POLLIN, 0});
    if (poll(polled.data(), polled.size(), TimeoutMs()) < 0 && errno != EINTR) {
      poll(nullptr, 0, 100);  // the kernel has no memory, as nothing else is possible: look again a little later
    }
    if (stopping.load(std::memory_order_acquire)) return;
    if (peers->late != nullptr) OnLate(polled.back().revents != 0);
    for (size_t r = 0; r < done.size(); ++r) {
      LookAt(r, polled[1 + 2 * r].revents != 0, polled[2 + 2 * r].revents != 0);
    }
  }
}

void Liveness::Impl::LookAt(size_t r, bool has_ended, bool spoke) {
  if (has_ended && !done[r]) OnPidfd(r);
  if (spoke) OnLink(r);
  if (!done[r] && later[r] && NowNs() >= later[r]->at_ns) Gone(r, later[r]->how);
}

int Liveness::Impl::TimeoutMs() const {
  int64_t until = peers->late != nullptr ? peers->late->until_ns() : kNever;
  for (size_t r = 0; r < done.size(); ++r) {
    if (!done[r] && later[r]) until = std::min(until, later[r]->at_ns);
  }
  if (stop.get() < 0) until = std::min(until, NowNs() + kLookNs);
  if (until == kNever) return -1;  // until a descriptor speaks; the eventfd ends it
  return static_cast<int>(std::max<int64_t>(0, (until - NowNs() + kNsPerMs - 1) / kNsPerMs));
}

void Liveness::Impl::OnLate(bool somebody) {
  const std::string what = somebody ? peers->late->Look() : "";
  if (!what.empty()) on_late(what);
  if (NowNs() >= peers->late->until_ns()) peers->late.reset();
}

void Liveness::Impl::OnPidfd(size_t r) {
  if (HasLeft(peers->arena->state(static_cast<int>(r)).load(std::memory_order_acquire))) {
    done[r] = true;
    return;
  }
  ended[r] = true;
  const std::string how = DescribeEnd(peers->pidfds[r].get(), peers->pids[r]);
  if (peers->arena->state(static_cast<int>(r)).load(std::memory_order_acquire) == RankState::kJobLost) {
    later[r] = {NowNs() + kCauseFirstNs, how};
  } else {
    Gone(r, how);
  }
}

void Liveness::Impl::OnLink(size_t r) {
  std::array<char, 4096> buffer;
  const ssize_t got = recv(Link(r), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    OnClosed(r);
    return;
  }
  if (rank == 0) return;  // workers send nothing; what a stranger to the protocol sends is dropped
  received[r].append(buffer.data(), static_cast<size_t>(got));
  while (received[r].size() >= sizeof(Notice)) {
    Notice notice;
    std::memcpy(&notice, received[r].data(), sizeof(notice));
    received[r].erase(0, sizeof(notice));
    OnNotice(notice);
  }
}

void Liveness::Impl::OnNotice(const Notice& notice) {
  if (notice.rank >= done.size() || done[notice.rank]) return;
  const std::string how(notice.how.data(), strnlen(notice.how.data(), notice.how.size()));
  Gone(notice.rank, how);
}

void Liveness::Impl::OnClosed(size_t r) {
  linked[r] = false;
  if (done[r]) return;
  // A rank says that it leaves before it closes.
  if (HasLeft(peers->arena->state(static_cast<int>(r)).load(std::memory_order_acquire))) {
    done[r] = true;
  } else if (peers->pidfds[r].get() >= 0) {
    if (!later[r]) later[r] = {NowNs() + kPidfdFollowsNs, kClosed};
  } else {
    Gone(r, kClosed);
  }
}

void Liveness::Impl::Gone(size_t r, const std::string& how) {
  done[r] = true;
  if (rank == 0) TellOthers(r, how);
  on_lost(static_cast<int>(r), how);
}

void Liveness::Impl::TellOthers(size_t r, const std::string& how) {
  Notice notice{static_cast<uint32_t>(r), {}};
  std::memcpy(notice.how.data(), how.data(), std::min(how.size(), notice.how.size() - 1));
  for (size_t other = 0; other < done.size(); ++other) {
    // A rank whose buffer is full of such notices knows enough.
    if (linked[other] && !done[other]) send(Link(other), &notice, sizeof(notice), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

Liveness::Liveness(Peers* peers, int rank, std::function<void(int rank, const std::string& how)> on_lost,
                   std::function<void(const std::string& what)> on_late)
    : impl_(std::make_unique<Impl>(peers, rank, std::move(on_lost), std::move(on_late))) {
  impl_->thread = NamedThread("hc-liveness", [impl = impl_.get()] { impl->Run(); });
}

Liveness::~Liveness() {
  impl_->stopping.store(true, std::memory_order_release);
  const uint64_t one = 1;
  while (impl_->stop.get() >= 0 && write(impl_->stop.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void Liveness::CloseInChild() { impl_->stop.Close(); }

}  // namespace horocache::net
