// Random numbers for simulation: the same on every platform and with every standard library.
#pragma once

#include <cstdint>

namespace horocache::testing {

// SplitMix64: small, statistically good enough for schedules, and one word of state.
class SeededRandom {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

  // In [0, bound); 0 if bound is 0. The modulo's bias is too small to show in a schedule.
  uint64_t Below(uint64_t bound) { return bound == 0 ? 0 : Next() % bound; }

 private:
  uint64_t state_;
};

}  // namespace horocache::testing
