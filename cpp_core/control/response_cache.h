// The responses that all ranks of a process set have agreed on before, and the bit that stands for each.
//
// Every rank applies the same Touch, Erase and Insert calls in the same order, all taken from agreed words and the
// agreed response list, so positions are equal on all ranks without further agreement. See Note [Cache positions are
// identical on all ranks] in controller.h.
//
// Role: coordinator. Pure: no clock, lock or I/O.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <queue>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "control/string_map.h"
#include "wire/message.h"

namespace horocache::control {

// What a caller remembers of an entry that it found equal to its request.
struct KnownEntry {
  std::shared_ptr<const wire::Signature> signature;  // null: nothing
  wire::CacheBit bit = wire::kNoBit;
};

class ResponseCache {
 public:
  enum class Lookup { kHit, kMiss, kChanged };
  static constexpr int64_t kMaxCapacity = 1 << 20;

  struct Entry {
    std::shared_ptr<const wire::Signature> signature;  // null: the slot is free
    wire::Choice choice;
    int64_t bytes = 0;
    uint64_t hash = 0;                     // of bit, signature and choice
    uint32_t ride_words = 0;               // of a rank's data, if it may ride on a round; 0: it may not
    std::vector<wire::CacheBit> overlaps;  // other entries with a tensor of the same name
    wire::CacheBit newer = wire::kNoBit;   // neighbours in order of use
    wire::CacheBit older = wire::kNoBit;
  };

  struct Inserted {
    wire::CacheBit bit = wire::kNoBit;
    // The entry that had to make room and whose bit this now is: who has it pending must submit it again.
    std::shared_ptr<const wire::Signature> evicted;
    bool grew = false;
  };

  // The cache remembers evicted names for this many agreed responses, or for 4 x capacity if that is more. (With 4 x
  // capacity alone, a job of more than five times as many operations as the default capacity would thrash for ever.)
  static constexpr uint64_t kLeastMemory = 1 << 17;

  // `capacity` 0 switches the cache off. A capacity that is `fixed` never grows.
  ResponseCache(int64_t capacity, bool fixed, uint64_t least_memory = kLeastMemory);

  // kChanged: the name is known but its signature differs; the caller asks all ranks to drop the entry. One look-up, no
  // allocation.
  Lookup Find(const wire::Signature& signature, wire::CacheBit* bit) const;
  // The same for a request that has not changed since *known was written, without a look at it if the entry is still
  // there; a hit writes it.
  Lookup Find(const wire::Signature& signature, wire::CacheBit* bit, KnownEntry* known) const;

  // Null if the slot is free.
  const Entry* At(wire::CacheBit bit) const;
  // The entries of which `name` is the name or a tensor; null if there is none.
  const std::vector<wire::CacheBit>* WithKey(std::string_view name) const;

  // The entries of these bit words were agreed on, and so used: ascending.
  void Touch(std::span<const uint64_t> bit_words);
  // Takes the lowest free slot; when full, that of the least recently used entry.
  Inserted Insert(std::shared_ptr<const wire::Signature> signature, wire::Choice choice, uint32_t ride_words = 0);
  // False if the slot is free.
  bool Erase(wire::CacheBit bit);

  bool enabled() const { return capacity_ > 0; }
  int64_t size() const { return size_; }
  int64_t capacity() const { return capacity_; }
  // Words that hold a bit for every slot that was ever used; equal on all ranks.
  size_t num_words() const { return occupied_.size(); }
  std::span<const uint64_t> occupied() const { return occupied_; }
  // The entries that may ride on a round.
  std::span<const uint64_t> riding() const { return riding_; }
  // Of contents and history, kept incrementally.
  uint64_t hash() const;

 private:
  void Link(wire::CacheBit bit);  // as the most recently used
  void Unlink(wire::CacheBit bit);
  wire::CacheBit TakeSlot();
  bool GrowIfReturned(std::string_view name);
  void IndexKeys(wire::CacheBit bit);
  void UnindexKeys(wire::CacheBit bit);

  int64_t capacity_;
  const bool fixed_;
  const uint64_t least_memory_;
  int64_t size_ = 0;
  std::vector<Entry> slots_;
  std::vector<uint64_t> occupied_;
  std::vector<uint64_t> riding_;
  std::priority_queue<wire::CacheBit, std::vector<wire::CacheBit>, std::greater<>> free_;
  wire::CacheBit newest_ = wire::kNoBit;
  wire::CacheBit oldest_ = wire::kNoBit;
  StringMap<wire::CacheBit> by_name_;
  StringMap<std::vector<wire::CacheBit>> by_key_;

  // Hashes of names evicted lately, and after how many agreed responses. (Two names of one hash would at worst make the
  // cache grow, on all ranks alike.)
  uint64_t agreed_ = 0;
  std::unordered_map<uint64_t, uint64_t> evicted_;
  std::deque<std::pair<uint64_t, uint64_t>> evicted_order_;

  uint64_t contents_hash_ = 0;  // XOR over the entries
  uint64_t history_hash_ = 0;   // chain over touches, erasures and growth
};

}  // namespace horocache::control
