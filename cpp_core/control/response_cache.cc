#include "control/response_cache.h"

#include <algorithm>
#include <utility>

#include "control/bitvector.h"
#include "control/hashing.h"
#include "control/signature.h"

namespace horocache::control {

using wire::CacheBit;
using wire::kNoBit;

namespace {

uint64_t HashOf(std::string_view name) {
  Hasher hasher;
  hasher.Add(name);
  return hasher.value();
}

}  // namespace

ResponseCache::ResponseCache(int64_t capacity, bool fixed, uint64_t least_memory)
    : capacity_(std::clamp<int64_t>(capacity, 0, kMaxCapacity)), fixed_(fixed), least_memory_(least_memory) {}

ResponseCache::Lookup ResponseCache::Find(const wire::Signature& signature, CacheBit* bit) const {
  const auto found = by_name_.find(std::string_view(signature.name));
  if (found == by_name_.end()) {
    *bit = kNoBit;
    return Lookup::kMiss;
  }
  *bit = found->second;
  return *slots_[*bit].signature == signature ? Lookup::kHit : Lookup::kChanged;
}

ResponseCache::Lookup ResponseCache::Find(const wire::Signature& signature, CacheBit* bit, KnownEntry* known) const {
  if (known == nullptr) return Find(signature, bit);
  if (known->signature != nullptr && known->bit < slots_.size() && slots_[known->bit].signature == known->signature) {
    *bit = known->bit;
    return Lookup::kHit;
  }
  const Lookup found = Find(signature, bit);
  if (found == Lookup::kHit) *known = {slots_[*bit].signature, *bit};
  return found;
}

const ResponseCache::Entry* ResponseCache::At(CacheBit bit) const {
  return bit < slots_.size() && slots_[bit].signature != nullptr ? &slots_[bit] : nullptr;
}

const std::vector<CacheBit>* ResponseCache::WithKey(std::string_view name) const {
  const auto found = by_key_.find(name);
  return found == by_key_.end() ? nullptr : &found->second;
}

void ResponseCache::Touch(std::span<const uint64_t> bit_words) {
  for (size_t i = 0; i < bit_words.size(); ++i) {
    if (bit_words[i] != 0) history_hash_ = Mix64(history_hash_ ^ Mix64(bit_words[i] + i));
  }
  ForEachBit(bit_words, [this](CacheBit bit) {
    ++agreed_;
    if (newest_ == bit) return;
    Unlink(bit);
    Link(bit);
  });
}

ResponseCache::Inserted ResponseCache::Insert(std::shared_ptr<const wire::Signature> signature, wire::Choice choice,
                                              uint32_t inline_words) {
  Inserted inserted;
  ++agreed_;
  if (const auto same = by_name_.find(signature->name); same != by_name_.end()) Erase(same->second);
  inserted.grew = GrowIfReturned(signature->name);
  if (size_ >= capacity_) {
    inserted.evicted = slots_[oldest_].signature;
    const uint64_t name = HashOf(inserted.evicted->name);
    evicted_[name] = agreed_;
    evicted_order_.emplace_back(agreed_, name);
    Erase(oldest_);
  }
  const CacheBit bit = TakeSlot();
  Entry& entry = slots_[bit];
  entry.signature = std::move(signature);
  entry.choice = choice;
  entry.bytes = SignatureBytes(*entry.signature);
  entry.hash = Mix64(HashOf(*entry.signature) ^
                     Mix64(bit | static_cast<uint64_t>(choice.backend) << 32 |
                           static_cast<uint64_t>(choice.algorithm) << 40 | static_cast<uint64_t>(choice.lane) << 48));
  contents_hash_ ^= entry.hash;
  entry.inline_words = inline_words;
  SetBit(occupied_, bit);
  if (inline_words > 0) SetBit(inline_bits_, bit);
  by_name_.emplace(entry.signature->name, bit);
  IndexKeys(bit);
  Link(bit);
  ++size_;
  inserted.bit = bit;
  return inserted;
}

bool ResponseCache::Erase(CacheBit bit) {
  if (At(bit) == nullptr) return false;
  Entry& entry = slots_[bit];
  history_hash_ = Mix64(history_hash_ ^ entry.hash);
  contents_hash_ ^= entry.hash;
  ClearBit(occupied_, bit);
  ClearBit(inline_bits_, bit);
  by_name_.erase(entry.signature->name);
  UnindexKeys(bit);
  Unlink(bit);
  entry = Entry{};
  free_.push(bit);
  --size_;
  return true;
}

void ResponseCache::Enable(bool on) {
  if (on == enabled()) return;
  capacity_when_on_ = std::exchange(capacity_, capacity_when_on_);
}

uint64_t ResponseCache::hash() const {
  return Mix64(contents_hash_ ^ Mix64(history_hash_ + static_cast<uint64_t>(capacity_)));
}

void ResponseCache::Link(CacheBit bit) {
  slots_[bit].newer = kNoBit;
  slots_[bit].older = newest_;
  if (newest_ != kNoBit) slots_[newest_].newer = bit;
  newest_ = bit;
  if (oldest_ == kNoBit) oldest_ = bit;
}

void ResponseCache::Unlink(CacheBit bit) {
  const Entry& entry = slots_[bit];
  (entry.newer == kNoBit ? newest_ : slots_[entry.newer].older) = entry.older;
  (entry.older == kNoBit ? oldest_ : slots_[entry.older].newer) = entry.newer;
}

CacheBit ResponseCache::TakeSlot() {
  if (!free_.empty()) {
    const CacheBit bit = free_.top();
    free_.pop();
    return bit;
  }
  const auto bit = static_cast<CacheBit>(slots_.size());
  slots_.emplace_back();
  if (bit / 64 >= occupied_.size()) {
    occupied_.push_back(0);
    inline_bits_.push_back(0);
  }
  return bit;
}

// Doubles the capacity if the name was evicted recently, because then the working set is larger than the cache. Names
// that never come back (for example, with a step number in them) must not make it grow.
bool ResponseCache::GrowIfReturned(std::string_view name) {
  const uint64_t window = std::max(least_memory_, 4 * static_cast<uint64_t>(capacity_));
  while (!evicted_order_.empty() && evicted_order_.front().first + window < agreed_) {
    const auto [when, old_name] = evicted_order_.front();
    evicted_order_.pop_front();
    if (const auto found = evicted_.find(old_name); found != evicted_.end() && found->second == when) {
      evicted_.erase(found);
    }
  }
  const auto found = evicted_.find(HashOf(name));
  if (found == evicted_.end()) return false;
  evicted_.erase(found);
  if (fixed_ || size_ < capacity_ || capacity_ >= kMaxCapacity) return false;
  capacity_ = std::min(kMaxCapacity, 2 * capacity_);
  return true;
}

void ResponseCache::IndexKeys(CacheBit bit) {
  const auto add = [](std::vector<CacheBit>& bits, CacheBit other) {
    if (std::ranges::find(bits, other) == bits.end()) bits.push_back(other);
  };
  ForEachKey(*slots_[bit].signature, [&](const std::string& key) {
    std::vector<CacheBit>& sharing = by_key_[key];
    for (const CacheBit other : sharing) {
      if (other == bit) continue;
      add(slots_[bit].overlaps, other);
      add(slots_[other].overlaps, bit);
    }
    add(sharing, bit);
  });
}

void ResponseCache::UnindexKeys(CacheBit bit) {
  for (const CacheBit other : slots_[bit].overlaps) std::erase(slots_[other].overlaps, bit);
  ForEachKey(*slots_[bit].signature, [&](const std::string& key) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return;  // already erased: a group may name a tensor twice
    std::erase(found->second, bit);
    if (found->second.empty()) by_key_.erase(found);
  });
}

}  // namespace horocache::control
