// Hashes that are equal on every machine: ranks compare them, so they must not depend on the standard library.
#pragma once

#include <cstdint>
#include <string_view>

namespace horocache::control {

// The finalizer of splitmix64: every input bit changes every output bit with probability one half.
inline constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A running hash of a sequence of values.
class Hasher {
 public:
  void Add(uint64_t value) { state_ = Mix64(state_ ^ value); }
  void Add(std::string_view text) {
    Add(text.size());
    uint64_t fnv = 0xcbf29ce484222325;
    for (const char c : text) fnv = (fnv ^ static_cast<uint8_t>(c)) * 0x100000001b3;
    Add(fnv);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace horocache::control
