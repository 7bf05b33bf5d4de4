// What this rank has submitted and not yet planned or failed: cached requests by bit, the others by name.
//
// A group is one request here, so nothing of it is ready before all of it is; its members are indexed to find a tensor
// that is pending twice.
//
// Role: coordinator. Pure. Steady state (AddHit, TakeHit) allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/plan.h"
#include "control/response_cache.h"
#include "control/string_map.h"
#include "control/words.h"
#include "wire/message.h"

namespace horocache::control {

class TensorTable {
 public:
  struct Uncached {
    OpId op = kNoOp;
    wire::Signature signature;
    bool sent = false;  // to the coordinator
  };
  using ByAge = std::multimap<int64_t, Uncached>;  // by the time of submission
  static constexpr uint32_t kNoPayload = ~uint32_t{0};
  struct Hit {
    OpId op = kNoOp;
    int64_t submitted_ns = 0;
    uint32_t payload = kNoPayload;  // which of the payloads holds its data
  };

  // The cache is read only; it outlives the table.
  explicit TensorTable(const ResponseCache* cache) : cache_(cache) {}

  // kDuplicateName if the request's name or one of its tensors' is pending. `data`: what is to be reduced, if it is
  // known; kept if the entry may ride on a round and it is as long as that says.
  Status AddHit(OpId op, wire::CacheBit bit, int64_t now_ns, std::span<const std::byte> data = {});
  Status AddUncached(OpId op, const wire::Signature& signature, int64_t now_ns);

  // The op that had the bit pending; kNoOp if none.
  OpId TakeHit(wire::CacheBit bit);
  // The op that has `name` pending uncached; kNoOp if none.
  OpId TakeUncached(const std::string& name);
  // The entry of `bit` is gone: if it was pending here it is now an uncached request, not sent yet, in the place of its
  // age.
  void Demote(wire::CacheBit bit, const wire::Signature& signature);

  // Makes the words of the hint those of everything pending.
  void Flush();
  std::span<const uint64_t> pending_words() const { return pending_; }
  std::span<const uint64_t> flushed_words() const { return flushed_; }

  bool empty() const { return hits_pending_ == 0 && uncached_.empty(); }
  size_t hits_pending() const { return hits_pending_; }
  size_t unsent() const { return unsent_; }
  const Hit& hit(wire::CacheBit bit) const { return hits_[bit]; }
  // The data of a pending hit, in whole words; empty if there is none.
  std::span<const uint64_t> payload(wire::CacheBit bit) const;
  const ByAge& uncached() const { return uncached_; }
  // Calls f(signature) for each request that was not sent yet, in order, and marks it as sent.
  template <typename F>
  void Send(F&& f) {
    for (auto& [submitted_ns, entry] : uncached_) {
      if (!entry.sent) f(entry.signature);
      entry.sent = true;
    }
    unsent_ = 0;
  }
  // Removes everything, calling f(op, signature): cached requests in cache order, then the others.
  template <typename F>
  void Clear(F&& f);

 private:
  Status Duplicate(const wire::Signature& signature, const std::string& key, const wire::Signature& pending) const;
  Status CheckUncachedKeys(const wire::Signature& signature) const;
  void Grow();
  uint32_t KeepPayload(std::span<const std::byte> data);
  void Insert(int64_t submitted_ns, Uncached entry);
  void Remove(ByAge::iterator at);

  using Payload = std::array<uint64_t, kMaxRideWords>;

  const ResponseCache* const cache_;
  std::vector<Hit> hits_;
  std::vector<Payload> payloads_;  // as many as were ever pending at once
  std::vector<uint32_t> free_payloads_;
  size_t hits_pending_ = 0;
  std::vector<uint64_t> pending_;
  std::vector<uint64_t> flushed_;
  ByAge uncached_;
  size_t unsent_ = 0;
  StringMap<ByAge::iterator> by_name_;
  StringMap<ByAge::iterator> by_key_;
};

template <typename F>
void TensorTable::Clear(F&& f) {
  for (wire::CacheBit bit = 0; bit < hits_.size(); ++bit) {
    if (hits_[bit].op == kNoOp) continue;
    const OpId op = TakeHit(bit);
    f(op, *cache_->At(bit)->signature);
  }
  while (!uncached_.empty()) {
    f(uncached_.begin()->second.op, uncached_.begin()->second.signature);
    Remove(uncached_.begin());
  }
}

}  // namespace horocache::control
