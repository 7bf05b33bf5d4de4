// The layout of a rank's words: what one AND over all ranks decides. The bitvector of the paper's Algorithm 2.
//
// Word 0 has the status flags, negated, so that AND over the ranks gives OR over the flags. Words 1 and 2 are the hash
// of the response cache and its complement: they are complementary in the AND iff all ranks' hashes are equal. From
// word 3 on, one bit per cache slot.
//
// Behind the words of a snapshot travels its payload, which no AND touches: see Note [Operations that ride on a round]
// in controller.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace horocache::control {

enum WordFlag : uint64_t {
  kUncached = 1 << 0,   // has requests that the caches do not know
  kLeaving = 1 << 1,    // shuts down
  kJoining = 1 << 2,    // has no more data
  kError = 1 << 3,      // aborts
  kStalled = 1 << 4,    // has something pending for too long
  kWaiting = 1 << 5,    // some thread waits: nobody should linger for long
  kLingering = 1 << 6,  // holds submissions back for a while, and knows of nobody who waits
};
// Flags that need the coordinator: the round gathers.
inline constexpr uint64_t kGatherFlags = kUncached | kLeaving | kJoining | kError | kStalled;
inline constexpr uint64_t kAllFlags = kGatherFlags | kWaiting | kLingering;
// Not negated, so that AND means that every rank says so: all its threads wait.
inline constexpr uint64_t kAllWaitBit = uint64_t{1} << 63;

inline constexpr size_t kFlagWord = 0;
inline constexpr size_t kHashWord = 1;
inline constexpr size_t kNotHashWord = 2;
inline constexpr size_t kFirstBitWord = 3;

// Of one snapshot: 512 bytes, for at most as many operations as it has words.
inline constexpr size_t kMaxPayloadWords = 64;
// Of one operation.
inline constexpr size_t kMaxRideBytes = 64;
inline constexpr size_t kMaxRideWords = kMaxRideBytes / sizeof(uint64_t);

// What one rank published for a round.
struct Snapshot {
  std::vector<uint64_t> words;
  std::vector<uint64_t> payload;
};

inline constexpr uint64_t EncodeFlags(uint64_t raised, bool all_wait) {
  return (~raised & ~kAllWaitBit) | (all_wait ? kAllWaitBit : 0);
}
inline constexpr uint64_t DecodeFlags(uint64_t word) { return ~word & kAllFlags; }

inline bool AnyBit(std::span<const uint64_t> words) {
  for (size_t i = kFirstBitWord; i < words.size(); ++i) {
    if (words[i] != 0) return true;
  }
  return false;
}

// Calls f(bit) for each bit that is set in both, ascending, until it returns false.
template <typename F>
void ForEachCommonBit(std::span<const uint64_t> a, std::span<const uint64_t> b, F&& f) {
  const size_t size = a.size() < b.size() ? a.size() : b.size();
  for (size_t i = 0; i < size; ++i) {
    for (uint64_t word = a[i] & b[i]; word != 0; word &= word - 1) {
      if (!f(static_cast<uint32_t>(i * 64 + static_cast<size_t>(std::countr_zero(word))))) return;
    }
  }
}

// Calls f(bit) for each set bit of the bit words, ascending: in cache order.
template <typename F>
void ForEachBit(std::span<const uint64_t> bit_words, F&& f) {
  for (size_t i = 0; i < bit_words.size(); ++i) {
    for (uint64_t word = bit_words[i]; word != 0; word &= word - 1) {
      f(static_cast<uint32_t>(i * 64 + static_cast<size_t>(std::countr_zero(word))));
    }
  }
}

inline void SetBit(std::span<uint64_t> bit_words, uint32_t bit) { bit_words[bit / 64] |= uint64_t{1} << (bit % 64); }
inline void ClearBit(std::span<uint64_t> bit_words, uint32_t bit) {
  bit_words[bit / 64] &= ~(uint64_t{1} << (bit % 64));
}
inline bool TestBit(std::span<const uint64_t> bit_words, uint32_t bit) {
  return bit / 64 < bit_words.size() && (bit_words[bit / 64] >> (bit % 64) & 1) != 0;
}

}  // namespace horocache::control
