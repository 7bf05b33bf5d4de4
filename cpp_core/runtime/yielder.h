// Gives the core up to others for as long as it comes back soon.
//
// Note [Neighbours that compute]
// Where the core goes to a peer rank, sched_yield returns within microseconds, and what the peer did is seen sooner
// than a futex would wake. Where it goes to a process that computes, a data loader say, it comes back after that one's
// time slice, and each wait costs milliseconds. A thread that sleeps instead goes before such a process when it is
// woken: four ranks beside two busy processes on two cores are six times as fast. So a yield that took long ends
// yielding for a while, which doubles for as long as the next one after it takes long, too.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace horocache::runtime {

// Any thread.
class Yielder {
 public:
  bool Pays(int64_t now_ns) const { return now_ns >= resume_ns_.load(std::memory_order_relaxed); }

  void Yield() {
    const int64_t began_ns = NowNs();
    sched_yield();
    Note(began_ns, NowNs());
  }

  // A yield that took that long. Threads that do this at once may lose one of their pauses.
  void Note(int64_t began_ns, int64_t ended_ns) {
    const int64_t pause_ns = pause_ns_.load(std::memory_order_relaxed);
    if (ended_ns - began_ns < kLongNs) {
      if (pause_ns != kShortestPauseNs) pause_ns_.store(kShortestPauseNs, std::memory_order_relaxed);
      return;
    }
    resume_ns_.store(ended_ns + pause_ns, std::memory_order_relaxed);
    pause_ns_.store(std::min(2 * pause_ns, kLongestPauseNs), std::memory_order_relaxed);
  }

  static constexpr int64_t kLongNs = kNsPerMs;  // less than a time slice, more than what ranks do for a collective
  static constexpr int64_t kShortestPauseNs = 10 * kNsPerMs, kLongestPauseNs = 640 * kNsPerMs;

 private:
  std::atomic<int64_t> resume_ns_{0};
  std::atomic<int64_t> pause_ns_{kShortestPauseNs};
};

}  // namespace horocache::runtime
