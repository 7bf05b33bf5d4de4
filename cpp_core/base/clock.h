// Time in nanoseconds of the steady clock. Pure layers never call these functions; their callers pass `now_ns`.
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

// The moment when the steady clock was 0, in ns since 1970, according to this host's calendar clock now.
inline int64_t SteadyEpochNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
             .count() -
         NowNs();
}

// Sleeps for `ns`, which is less than a second; a signal may end the sleep early.
inline void Nap(int64_t ns) {
  const timespec nap{0, static_cast<long>(ns)};
  nanosleep(&nap, nullptr);
}

// The time `seconds` from now. Negative values count as 0, values above 1e9 (about 30 years) as 1e9.
inline int64_t DeadlineNs(double seconds) {
  constexpr double kAges = 1e9;
  // Not std::clamp, which returns NaN for NaN; this returns 0.
  const double bounded = seconds > 0 ? std::min(seconds, kAges) : 0.0;
  return NowNs() + static_cast<int64_t>(bounded * static_cast<double>(kNsPerS));
}

}  // namespace horocache
