// Time as nanoseconds of the steady clock. Pure layers never call this; they are told `now_ns`.
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/duration.h"

namespace horocache {

inline int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// When the steady clock was 0, in time since 1970, as this host's calendar clock has it now.
inline int64_t SteadyEpochNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
             .count() -
         NowNs();
}

// Less than a second; a signal may end it early.
inline void Nap(int64_t ns) {
  const timespec nap{0, static_cast<long>(ns)};
  nanosleep(&nap, nullptr);
}

// So many seconds from now, as far as the clock reaches.
inline int64_t DeadlineNs(double seconds) {
  constexpr double kAges = 1e9;
  // Not std::clamp: of NaN it makes NaN, and this makes 0.
  const double bounded = seconds > 0 ? std::min(seconds, kAges) : 0.0;
  return NowNs() + static_cast<int64_t>(bounded * static_cast<double>(kNsPerS));
}

}  // namespace horocache
