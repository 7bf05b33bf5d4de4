// Time as nanoseconds of the steady clock. Pure layers never call this; they are told `now_ns`.
#pragma once

#include <chrono>
#include <cstdint>

namespace horocache {

inline int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline constexpr int64_t kNsPerUs = 1000;
inline constexpr int64_t kNsPerMs = 1000 * 1000;
inline constexpr int64_t kNsPerS = 1000 * 1000 * 1000;

}  // namespace horocache
