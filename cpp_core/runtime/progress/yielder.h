// Yields the core to other threads, as long as it comes back soon.
//
// Note [Yielding beside busy processes]
// If sched_yield gives the core to a peer rank, it returns within microseconds, and the caller sees the peer's progress
// sooner than a futex would wake it. If the core goes to a process that computes, such as a data loader, sched_yield
// returns only after that process's time slice, and each wait costs milliseconds. A thread that sleeps, in contrast, is
// scheduled before such a process when it is woken: four ranks beside two busy processes on two cores become six times
// as fast. So after one slow yield, threads stop yielding for a pause. The pause doubles as long as the next yield
// after it is slow, too.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace horocache::runtime {

// Threads: any.
class Yielder {
 public:
  // True if the last slow yield is long enough ago.
  bool Pays(int64_t now_ns) const { return now_ns >= resume_ns_.load(std::memory_order_relaxed); }

  void Yield() {
    const int64_t began_ns = NowNs();
    sched_yield();
    Note(began_ns, NowNs());
  }

  // Records a yield. If threads record at the same time, one of their pauses may be lost.
  void Note(int64_t began_ns, int64_t ended_ns) {
    const int64_t pause_ns = pause_ns_.load(std::memory_order_relaxed);
    if (ended_ns - began_ns < kLongNs) {
      if (pause_ns != kShortestPauseNs) pause_ns_.store(kShortestPauseNs, std::memory_order_relaxed);
      return;
    }
    resume_ns_.store(ended_ns + pause_ns, std::memory_order_relaxed);
    pause_ns_.store(std::min(2 * pause_ns, kLongestPauseNs), std::memory_order_relaxed);
  }

  static constexpr int64_t kLongNs = kNsPerMs;  // shorter than a time slice, longer than a rank's work for a collective
  static constexpr int64_t kShortestPauseNs = 10 * kNsPerMs, kLongestPauseNs = 640 * kNsPerMs;

 private:
  std::atomic<int64_t> resume_ns_{0};
  std::atomic<int64_t> pause_ns_{kShortestPauseNs};
};

}  // namespace horocache::runtime
