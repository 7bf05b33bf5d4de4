// Times are int64_t nanoseconds.
#pragma once

#include <cstdint>
#include <limits>

namespace horocache {

inline constexpr int64_t kNsPerUs = 1000;
inline constexpr int64_t kNsPerMs = 1000 * 1000;
inline constexpr int64_t kNsPerS = 1000 * 1000 * 1000;
inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Converts a knob's value, in units of `unit_ns`, to nanoseconds.
inline int64_t Nanoseconds(double amount, int64_t unit_ns) {
  return static_cast<int64_t>(amount * static_cast<double>(unit_ns));
}

}  // namespace horocache
