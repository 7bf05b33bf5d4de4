// The paper's response cache: the responses that all ranks of a process set have agreed on before, and the cache bit
// that stands for each.
//
// Every rank applies the same Touch, Erase and Insert calls in the same order, all derived from AND-reduced bitvectors
// and response lists, so positions are equal on all ranks without further agreement. See Note [Cache positions are
// identical on all ranks] in controller.h.
//
// Threads: the thread that holds the rank's progress lock. Pure: no clock, lock or I/O.
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

// A caller's record of the entry that was equal to its request; it saves a lookup by name.
struct KnownEntry {
  std::shared_ptr<const wire::Signature> signature;  // null: no entry is known
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
    uint32_t inline_words = 0;             // words of one rank's data if the operation may run inline, else 0
    std::vector<wire::CacheBit> overlaps;  // other entries that share a request or tensor name
    wire::CacheBit newer = wire::kNoBit;   // neighbours in order of use
    wire::CacheBit older = wire::kNoBit;
  };

  struct Inserted {
    wire::CacheBit bit = wire::kNoBit;
    // The evicted entry, whose bit the new entry has; null if there is none. A request of it that is pending here must
    // be submitted again, as uncached.
    std::shared_ptr<const wire::Signature> evicted;
    bool grew = false;
  };

  // For how many agreed responses the cache remembers evicted names; it uses 4 x capacity if that is more. (With 4 x
  // capacity alone, a job with more than five times as many operations as the default capacity would thrash forever.)
  static constexpr uint64_t kMinEvictionWindow = 1 << 17;

  // `capacity` 0 switches the cache off. A `fixed` capacity never grows.
  ResponseCache(int64_t capacity, bool fixed, uint64_t least_memory = kMinEvictionWindow);

  // Looks the request up by name. kChanged: the name is known but its signature differs; the caller asks all ranks to
  // drop the entry. One lookup, no allocation.
  Lookup Find(const wire::Signature& signature, wire::CacheBit* bit) const;
  // As above, for a request that has not changed since *known was written: if that entry is still in the cache, it is a
  // hit without a lookup or a comparison. A hit writes *known.
  Lookup Find(const wire::Signature& signature, wire::CacheBit* bit, KnownEntry* known) const;

  // Null if the slot is free.
  const Entry* At(wire::CacheBit bit) const;
  // The entries whose name, or one of whose tensors' names, is `name`; null if there are none.
  const std::vector<wire::CacheBit>* WithKey(std::string_view name) const;

  // Marks the entries of these bit words as used, in ascending order, because all ranks have agreed on them.
  void Touch(std::span<const uint64_t> bit_words);
  // Takes the lowest free slot or, if the cache is full, the slot of the least recently used entry.
  Inserted Insert(std::shared_ptr<const wire::Signature> signature, wire::Choice choice, uint32_t inline_words = 0);
  // False if the slot is free.
  bool Erase(wire::CacheBit bit);

  bool enabled() const { return capacity_ > 0; }
  // Off: nothing is inserted, and the cache must be empty. On: the capacity is what it was.
  void Enable(bool on);
  int64_t size() const { return size_; }
  int64_t capacity() const { return capacity_; }
  // The number of words that hold one bit for every slot ever used; equal on all ranks.
  size_t num_words() const { return occupied_.size(); }
  std::span<const uint64_t> occupied() const { return occupied_; }
  // The bits of the entries that may run inline.
  std::span<const uint64_t> inline_bits() const { return inline_bits_; }
  // The hash of contents and history, updated incrementally.
  uint64_t hash() const;

 private:
  void Link(wire::CacheBit bit);  // as the most recently used
  void Unlink(wire::CacheBit bit);
  wire::CacheBit TakeSlot();
  bool GrowIfReturned(std::string_view name);
  void IndexKeys(wire::CacheBit bit);
  void UnindexKeys(wire::CacheBit bit);

  int64_t capacity_;
  int64_t capacity_when_on_ = 0;  // while it is switched off
  const bool fixed_;
  const uint64_t least_memory_;
  int64_t size_ = 0;
  std::vector<Entry> slots_;
  std::vector<uint64_t> occupied_;
  std::vector<uint64_t> inline_bits_;
  std::priority_queue<wire::CacheBit, std::vector<wire::CacheBit>, std::greater<>> free_;
  wire::CacheBit newest_ = wire::kNoBit;
  wire::CacheBit oldest_ = wire::kNoBit;
  StringMap<wire::CacheBit> by_name_;
  StringMap<std::vector<wire::CacheBit>> by_key_;

  // The hashes of recently evicted names, each with the value of agreed_ at its eviction. (If two names have the same
  // hash, the cache may grow without need, on all ranks alike.)
  uint64_t agreed_ = 0;
  std::unordered_map<uint64_t, uint64_t> evicted_;
  std::deque<std::pair<uint64_t, uint64_t>> evicted_order_;

  uint64_t contents_hash_ = 0;  // XOR over the entries
  uint64_t history_hash_ = 0;   // chain over touches, erasures and growth
};

}  // namespace horocache::control
