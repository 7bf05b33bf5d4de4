// A rank's bitvector (BitVector in the paper's Algorithm 2), and the AND that reduces the bitvectors of all ranks to
// the one that decides a round.
//
// Word 0, the flag word, holds the status flags, negated, so that AND over the ranks gives OR over the flags. Words 1
// and 2, the hash words, hold the hash of the response cache and of the selector, and its complement: they are
// complementary in the AND iff the hashes of all ranks are equal. From word 3 on, there is one bit per cache slot.
//
// Example: rank 0 has the cache bits 0 and 2 pending (0b101), rank 1 the bits 0 and 1 (0b011). The AND is 0b001, so
// both ranks run entry 0. If rank 1 also has an uncached request, kUncached is 0 in its negated flag word and therefore
// in the AND: some rank raised the flag, and both ranks gather.
//
// A snapshot also carries a payload, which the AND leaves out: see Note [Inline allreduces] in
// controller.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace horocache::control {

enum StatusFlag : uint64_t {
  kUncached = 1 << 0,   // has uncached requests, or a note, to send
  kLeaving = 1 << 1,    // leaves the process set
  kJoining = 1 << 2,    // joins: has no more data
  kError = 1 << 3,      // aborts
  kStalled = 1 << 4,    // asks for a stall inspection: a request is pending for too long, or all threads wait
  kWaiting = 1 << 5,    // a thread waits, so no rank should linger for long
  kLingering = 1 << 6,  // delays its flush, and knows of no waiting rank
};
// The flags that need the coordinator: the round gathers requests.
inline constexpr uint64_t kGatherFlags = kUncached | kLeaving | kJoining | kError | kStalled;
inline constexpr uint64_t kAllFlags = kGatherFlags | kWaiting | kLingering;
// Not negated, so that in the AND it is set only if every rank sets it: all threads of all ranks wait.
inline constexpr uint64_t kAllWaitBit = uint64_t{1} << 63;

inline constexpr size_t kFlagWord = 0;
inline constexpr size_t kHashWord = 1;
inline constexpr size_t kNotHashWord = 2;
inline constexpr size_t kFirstBitWord = 3;

// The most words in the payload of one snapshot (512 bytes), and so the most inline allreduces in one round.
inline constexpr size_t kMaxPayloadWords = 64;
// The most bytes of one rank's data in one inline allreduce.
inline constexpr size_t kMaxInlineBytes = 64;
inline constexpr size_t kMaxInlineWords = kMaxInlineBytes / sizeof(uint64_t);

// The words of a bitvector with names for their parts: of one rank, or of the AND over ranks. Owns nothing; the words
// must outlive it. A bitvector that was cut short counts as one without flags, hash and cache bits.
class Bitvector {
 public:
  explicit Bitvector(std::span<const uint64_t> words) : words_(words) {}

  // Writes the words of a rank's bitvector with `num_bit_words` words of cache bits, all clear.
  static void Write(uint64_t raised, bool all_wait, uint64_t hash, size_t num_bit_words, std::vector<uint64_t>* words) {
    words->assign(kFirstBitWord + num_bit_words, 0);
    (*words)[kFlagWord] = (~raised & ~kAllWaitBit) | (all_wait ? kAllWaitBit : 0);
    (*words)[kHashWord] = hash;
    (*words)[kNotHashWord] = ~hash;
  }

  bool empty() const { return words_.size() <= kNotHashWord; }
  // The flags that some rank raised.
  uint64_t raised() const { return words_.empty() ? 0 : ~words_[kFlagWord] & kAllFlags; }
  bool all_wait() const { return !words_.empty() && (words_[kFlagWord] & kAllWaitBit) != 0; }
  bool hashes_agree() const { return !empty() && words_[kHashWord] == ~words_[kNotHashWord]; }
  std::span<const uint64_t> cache_bits() const {
    return words_.size() <= kFirstBitWord ? std::span<const uint64_t>() : words_.subspan(kFirstBitWord);
  }
  bool any_cache_bit() const {
    return std::ranges::any_of(cache_bits(), [](uint64_t word) { return word != 0; });
  }

 private:
  std::span<const uint64_t> words_;
};

// The AND of the round: reduces a bitvector of `count` words into *out, which becomes as long as the longer of
// the two; words that one of them lacks become 0. Lengths differ only if the caches do, which the hash words show.
// `load(i)` reads word i, from this rank's memory or from memory that another rank writes.
template <typename Load>
void AndInto(size_t count, Load&& load, std::vector<uint64_t>* out) {
  const size_t common = std::min(count, out->size());
  for (size_t i = 0; i < common; ++i) (*out)[i] &= load(i);
  std::fill(out->begin() + static_cast<std::ptrdiff_t>(common), out->end(), 0);
  if (count > out->size()) out->resize(count, 0);
}
inline void AndInto(std::span<const uint64_t> words, std::vector<uint64_t>* out) {
  AndInto(words.size(), [words](size_t i) { return words[i]; }, out);
}

// The bitvector and the payload that one rank published for a round.
struct Snapshot {
  std::vector<uint64_t> words;
  std::vector<uint64_t> payload;
};

// Calls f(bit) for each bit that is set in both, ascending, until f returns false.
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
