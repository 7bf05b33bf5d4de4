// A set of 128-bit states for explorers: open addressing, one array.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace horocache::testing {

class StateSet {
 public:
  using Key = std::array<uint64_t, 2>;

  // False if the set has the key already. A key is not {0, 0}.
  bool Insert(const Key& key) {
    if (2 * (size_ + 1) > slots_.size()) Grow();
    if (!Put(key)) return false;
    ++size_;
    return true;
  }
  size_t size() const { return size_; }

 private:
  static uint64_t Hash(const Key& key) {
    uint64_t z = key[0] * 0x9E3779B97F4A7C15ull ^ (key[1] + 0xD1B54A32D192ED03ull) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 29)) * 0x94D049BB133111EBull;
    return z ^ (z >> 32);
  }
  bool Put(const Key& key) {
    size_t at = Hash(key) & (slots_.size() - 1);
    for (; slots_[at] != Key{}; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == key) return false;
    }
    slots_[at] = key;
    return true;
  }
  void Grow() {
    std::vector<Key> old = std::move(slots_);
    slots_.assign(old.empty() ? 1024 : 2 * old.size(), Key{});
    for (const Key& key : old) {
      if (key != Key{}) Put(key);
    }
  }

  std::vector<Key> slots_;
  size_t size_ = 0;
};

}  // namespace horocache::testing
