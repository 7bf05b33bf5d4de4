// The time during which at least one lane of a rank was busy: the union over its lanes.
//
// The state is a single atomic word, so a concurrent reader always sees a consistent value. While every lane is idle,
// the word is the total busy time in nanoseconds. While a lane is busy, the word is that total minus the steady-clock
// time at which the busy period began, which makes it negative. For example, the first busy period, from 100 to 130,
// sets the word to -100 and then to 30.
//
// Shared: written by the driving thread, read by any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace horocache::runtime {

class BusyTime {
 public:
  // Called when a lane becomes busy or idle. `now_ns` is a steady-clock time.
  void Begin(int64_t now_ns) {
    if (busy_lanes_++ == 0) Shift(-now_ns);
  }
  void End(int64_t now_ns) {
    if (--busy_lanes_ == 0) Shift(now_ns);
  }
  // The total until now, including the current busy period.
  int64_t TotalNs() const {
    const int64_t word = word_.load(std::memory_order_acquire);
    return word < 0 ? word + NowNs() : word;
  }

 private:
  void Shift(int64_t by_ns) { word_.store(word_.load(std::memory_order_relaxed) + by_ns, std::memory_order_release); }

  int busy_lanes_ = 0;  // used by the driving thread only
  std::atomic<int64_t> word_{0};
};

}  // namespace horocache::runtime
