#include "net/failure/peer_monitor.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/thread.h"
#include "base/waker.h"
#include "net/bootstrap/duplicate_rank_watch.h"
#include "net/failure/exit_status.h"

namespace horocache::net {
namespace {

// A pidfd shows how a process ended up to this long after its link has closed or its thread has ended.
constexpr int64_t kPidfdFollowsNs = 100 * kNsPerMs;
// Delay of the report on a rank that ends after it has seen a loss, so that the loss itself is reported first.
constexpr int64_t kCauseFirstNs = 500 * kNsPerMs;
// Interval between two checks of ranks that have no usable descriptor.
constexpr int64_t kLookNs = 100 * kNsPerMs;
// Pause before the thread tries again after memory ran out.
constexpr int kNoMemoryMs = 100;
constexpr const char* kClosed = "closed its connection without shutdown()";

// A notice that a rank is gone. Rank 0 sends it over the links to the other ranks, which may have no pidfd of that
// rank.
struct Notice {
  uint32_t rank;
  std::array<char, 124> how;  // padded with zeros, at least one
};
static_assert(sizeof(Notice) == 128);

}  // namespace

// Note [Closed descriptors]
// A program may close descriptors that it does not know, including the core's. The rank and the job then go on: a
// closed link is not a loss while the rank's monitor thread, whose thread id is in the arena, is seen alive. (If the
// process executes another program, that thread is gone.) A rank that has lost descriptors of its own, or whose link
// was closed on the other side, checks the others' monitor threads several times a second instead.
//
// Threads: `stopping` and the waker on any; everything else on the monitor thread.
struct PeerMonitor::Impl {
  Impl(Peers* peers_in, int local_rank_in, std::function<void(int, const std::string&)> on_lost_in,
       std::function<void(const std::string&)> on_duplicate_in)
      : peers(peers_in),
        local_rank(local_rank_in),
        on_lost(std::move(on_lost_in)),
        on_duplicate(std::move(on_duplicate_in)) {
    const size_t size = peers->pids.size();
    done.resize(size, false);
    done[static_cast<size_t>(local_rank)] = true;
    seen_alive.resize(size, false);
    later.resize(size);
    linked.resize(size, false);
    ended.resize(size, false);
    received.resize(size);
    for (size_t r = 0; r < size; ++r) linked[r] = Link(r) != nullptr && Link(r)->intact();
    for (const UniqueFd& pidfd : peers->pidfds) has_pidfd.push_back(pidfd.intact());
  }

  const UniqueFd* Link(size_t r) const {
    if (local_rank != 0) return r == 0 && !peers->links.empty() ? &peers->links[0] : nullptr;
    return r < peers->links.size() ? &peers->links[r] : nullptr;
  }

  void Run();
  void Look();
  void TakeNews();
  void NoteLostDescriptors();
  bool Lives(size_t r);
  int64_t SleepNs() const;
  void OnDuplicate(bool somebody);
  void OnPidfd(size_t r);
  void OnLink(size_t r);
  void OnNotice(const Notice& notice);
  void OnClosed(size_t r);
  void OnEnd(size_t r);
  void OnDue(size_t r);
  void LookAtThreads();
  void Gone(size_t r, const std::string& how);
  void NotifyOthers(size_t r, const std::string& how);

  Peers* const peers;
  const int local_rank;
  const std::function<void(int, const std::string&)> on_lost;
  const std::function<void(const std::string&)> on_duplicate;
  std::atomic<bool> stopping{false};
  Waker waker;
  std::vector<bool> done;        // by rank: gone, left, or this rank
  std::vector<bool> has_pidfd;   // by rank
  std::vector<bool> linked;      // by rank: its link is open
  std::vector<bool> seen_alive;  // by rank: this rank has seen its monitor thread alive
  struct Later {
    int64_t at_ns;
    std::string how;  // empty: ask the kernel at that time
  };
  std::vector<std::optional<Later>> later;  // by rank: the report at at_ns, unless more is known by then
  std::vector<bool> ended;                  // by rank: its pidfd or its thread has shown the end
  std::vector<std::string> received;        // by rank: the part of a notice that has arrived
  bool looks = false;                       // true: also checks threads, every kLookNs
  std::vector<pollfd> polled;
  NamedThread thread;  // last: joined before the other members are destroyed
};

void PeerMonitor::Impl::Run() {
  peers->arena->monitor_thread(local_rank).store(ThisThread());
  while (!stopping.load(std::memory_order_acquire)) {
    try {
      Look();
    } catch (const std::bad_alloc&) {  // the next look sees the same events
      poll(nullptr, 0, kNoMemoryMs);
    }
  }
}

void PeerMonitor::Impl::Look() {
  NoteLostDescriptors();
  polled.clear();
  for (size_t r = 0; r < done.size(); ++r) {
    polled.push_back({has_pidfd[r] && !done[r] && !ended[r] ? peers->pidfds[r].get() : -1, POLLIN, 0});
    polled.push_back({linked[r] ? Link(r)->get() : -1, POLLIN, 0});
  }
  polled.push_back({peers->duplicates != nullptr ? peers->duplicates->fd() : -1, POLLIN, 0});
  waker.Sleep(&polled, SleepNs());
  if (!stopping.load(std::memory_order_acquire)) TakeNews();
}

void PeerMonitor::Impl::TakeNews() {
  NoteLostDescriptors();
  if (peers->duplicates != nullptr) OnDuplicate(polled[2 * done.size()].revents != 0);
  for (size_t r = 0; r < done.size(); ++r) {
    if (polled[2 * r].revents != 0 && has_pidfd[r] && !done[r]) OnPidfd(r);
    if (polled[2 * r + 1].revents != 0 && linked[r]) OnLink(r);
    if (!done[r] && later[r] && NowNs() >= later[r]->at_ns) OnDue(r);
  }
  if (looks) LookAtThreads();
}

// See Note [Checking descriptors before use] in base/unique_fd.h.
void PeerMonitor::Impl::NoteLostDescriptors() {
  if (!waker.intact()) looks = true;
  if (peers->duplicates != nullptr && !peers->duplicates->intact()) peers->duplicates.reset();
  for (size_t r = 0; r < done.size(); ++r) {
    if (!done[r]) Lives(r);
    if (has_pidfd[r] && !peers->pidfds[r].intact()) {
      has_pidfd[r] = false;
      looks = true;
    }
    if (linked[r] && !Link(r)->intact()) {
      linked[r] = false;
      looks = true;
    }
  }
}

// True if the rank's monitor thread is alive. False means something only if the thread was seen before: a process in
// another container has other numbers.
bool PeerMonitor::Impl::Lives(size_t r) {
  const int32_t monitor_thread = peers->arena->monitor_thread(static_cast<int>(r)).load();
  const int pid = peers->pids[r];
  if (monitor_thread <= 0 || pid <= 0) return false;
  const bool lives = syscall(SYS_tgkill, pid, monitor_thread, 0) == 0 || errno == EPERM;
  if (lives) seen_alive[r] = true;
  return lives;
}

int64_t PeerMonitor::Impl::SleepNs() const {
  int64_t until = looks ? NowNs() + kLookNs : kNever;
  if (peers->duplicates != nullptr) until = std::min(until, peers->duplicates->until_ns());
  for (size_t r = 0; r < done.size(); ++r) {
    if (!done[r] && later[r]) until = std::min(until, later[r]->at_ns);
  }
  return until == kNever ? kNever : until - NowNs();
}

void PeerMonitor::Impl::OnDuplicate(bool somebody) {
  const std::string what = somebody ? peers->duplicates->Look() : "";
  if (!what.empty()) on_duplicate(what);
  if (NowNs() >= peers->duplicates->until_ns()) peers->duplicates.reset();
}

void PeerMonitor::Impl::OnPidfd(size_t r) {
  if (HasLeft(peers->arena->state(static_cast<int>(r)).load(std::memory_order_acquire))) {
    done[r] = true;
    return;
  }
  if (Lives(r)) {  // the descriptor's number is not the pidfd any more
    has_pidfd[r] = false;
    looks = true;
    return;
  }
  OnEnd(r);
}

void PeerMonitor::Impl::OnLink(size_t r) {
  std::array<char, 4096> buffer;
  const ssize_t got = recv(Link(r)->get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    OnClosed(r);
    return;
  }
  if (local_rank == 0) return;  // workers send nothing, so unexpected bytes are dropped
  received[r].append(buffer.data(), static_cast<size_t>(got));
  while (received[r].size() >= sizeof(Notice)) {
    Notice notice;
    std::memcpy(&notice, received[r].data(), sizeof(notice));
    received[r].erase(0, sizeof(notice));
    OnNotice(notice);
  }
}

void PeerMonitor::Impl::OnNotice(const Notice& notice) {
  if (notice.rank >= done.size() || done[notice.rank]) return;
  const std::string how(notice.how.data(), strnlen(notice.how.data(), notice.how.size()));
  Gone(notice.rank, how);
}

void PeerMonitor::Impl::OnClosed(size_t r) {
  linked[r] = false;
  if (done[r]) return;
  // A rank stores that it leaves before it closes its link.
  if (HasLeft(peers->arena->state(static_cast<int>(r)).load(std::memory_order_acquire))) {
    done[r] = true;
  } else if (has_pidfd[r] || Lives(r)) {
    if (!later[r]) later[r] = {NowNs() + kPidfdFollowsNs, kClosed};
  } else {
    Gone(r, kClosed);
  }
}

// Handles the end of rank r's process.
void PeerMonitor::Impl::OnEnd(size_t r) {
  const std::string how = DescribeEnd(has_pidfd[r] ? peers->pidfds[r].get() : -1, peers->pids[r]);
  if (peers->arena->state(static_cast<int>(r)).load(std::memory_order_acquire) == RankState::kJobLost) {
    later[r] = {NowNs() + kCauseFirstNs, how};
  } else {
    Gone(r, how);
  }
  ended[r] = true;
}

void PeerMonitor::Impl::OnDue(size_t r) {
  if (!ended[r] && later[r]->how.empty() && !Lives(r)) {
    later[r].reset();
    OnEnd(r);
  } else if (ended[r] || !Lives(r)) {
    Gone(r, later[r]->how);
  } else {  // only its link has closed
    later[r].reset();
    looks = true;
  }
}

void PeerMonitor::Impl::LookAtThreads() {
  for (size_t r = 0; r < done.size(); ++r) {
    if (done[r] || later[r] || Lives(r) || !seen_alive[r]) continue;
    if (HasLeft(peers->arena->state(static_cast<int>(r)).load(std::memory_order_acquire))) {
      done[r] = true;
    } else {  // the kernel shows how it ended once the other threads of the process have ended, too
      later[r] = {NowNs() + kPidfdFollowsNs, ""};
    }
  }
}

void PeerMonitor::Impl::Gone(size_t r, const std::string& how) {
  on_lost(static_cast<int>(r), how);
  if (local_rank == 0) NotifyOthers(r, how);
  done[r] = true;  // last: if memory runs out above, the next look does it again
}

void PeerMonitor::Impl::NotifyOthers(size_t r, const std::string& how) {
  Notice notice{static_cast<uint32_t>(r), {}};
  std::memcpy(notice.how.data(), how.data(), std::min(how.size(), notice.how.size() - 1));
  for (size_t other = 0; other < done.size(); ++other) {
    // A rank whose socket buffer is full of notices already knows of losses.
    if (linked[other] && !done[other] && Link(other)->intact())
      send(Link(other)->get(), &notice, sizeof(notice), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

PeerMonitor::PeerMonitor(Peers* peers, int local_rank,
                         std::function<void(int local_rank, const std::string& how)> on_lost,
                         std::function<void(const std::string& what)> on_duplicate)
    : impl_(std::make_unique<Impl>(peers, local_rank, std::move(on_lost), std::move(on_duplicate))) {
  impl_->thread = NamedThread("hc-monitor", [impl = impl_.get()] { impl->Run(); });
}

PeerMonitor::~PeerMonitor() {
  impl_->stopping.store(true, std::memory_order_release);
  impl_->waker.Wake();
}

void PeerMonitor::CloseInChild() { impl_->waker.CloseInChild(); }

std::optional<EndedRank> FindEnded(const Peers& peers) {
  for (size_t r = 0; r < peers.pidfds.size(); ++r) {
    const UniqueFd& pidfd = peers.pidfds[r];
    pollfd polled{pidfd.get(), POLLIN, 0};
    if (!pidfd.intact() || poll(&polled, 1, 0) <= 0) continue;
    // A rank that needs no other rank any more may have finished its work and left.
    if (HasLeft(peers.arena->state(static_cast<int>(r)).load(std::memory_order_acquire))) continue;
    return EndedRank{static_cast<int>(r), DescribeEnd(pidfd.get(), peers.pids[r])};
  }
  return std::nullopt;
}

}  // namespace horocache::net
