// For how long at least one lane of a rank has had something to do: the union over its lanes.
//
// One word, so that who reads it meanwhile sees a whole state: the time so far, or while a lane is busy, which makes it
// negative, that less the time since when.
//
// Shared: written by the holder of the role, read by anybody.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace horocache::runtime {

class BusyTime {
 public:
  // A lane gets something to do, or has nothing any more; times of the steady clock.
  void Begin(int64_t now_ns) {
    if (busy_lanes_++ == 0) Shift(-now_ns);
  }
  void End(int64_t now_ns) {
    if (--busy_lanes_ == 0) Shift(now_ns);
  }
  // Until now, with what is not over.
  int64_t TotalNs() const {
    const int64_t word = word_.load(std::memory_order_acquire);
    return word < 0 ? word + NowNs() : word;
  }

 private:
  void Shift(int64_t by_ns) { word_.store(word_.load(std::memory_order_relaxed) + by_ns, std::memory_order_release); }

  int busy_lanes_ = 0;  // of the holder of the role
  std::atomic<int64_t> word_{0};
};

}  // namespace horocache::runtime
