// The paper's tensor queue: the requests that this rank has submitted and that are neither planned nor failed. Cached
// requests are found by their cache bit, the others by name.
//
// A group is one request here, so no part of it is ready before all of it is. Its members are indexed to find a tensor
// that is pending twice.
//
// Threads: the thread that holds the rank's progress lock. Pure. Steady state (AddHit, TakeHit) allocates nothing.
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
#include "control/bitvector.h"
#include "control/plan.h"
#include "control/response_cache.h"
#include "control/string_map.h"
#include "wire/message.h"

namespace horocache::control {

class TensorQueue {
 public:
  struct Uncached {
    OpId op = kNoOp;
    wire::Signature signature;
    bool sent = false;  // true once it is sent to the coordinator
  };
  using ByAge = std::multimap<int64_t, Uncached>;  // by the time of submission
  static constexpr uint32_t kNoPayload = ~uint32_t{0};
  struct Hit {
    OpId op = kNoOp;
    int64_t submitted_ns = 0;
    uint32_t payload = kNoPayload;  // index of its data in payloads_
  };

  // The cache is read only; it outlives the queue.
  explicit TensorQueue(const ResponseCache* cache) : cache_(cache) {}

  // Adds a cached request. kDuplicateName if its name or one of its tensors' names is pending. `data`: this rank's
  // input, if it is known; kept if the entry may run inline and the length is the entry's.
  Status AddHit(OpId op, wire::CacheBit bit, int64_t now_ns, std::span<const std::byte> data = {});
  Status AddUncached(OpId op, const wire::Signature& signature, int64_t now_ns);

  // Removes the pending request of the bit and returns its op; kNoOp if there is none.
  OpId TakeHit(wire::CacheBit bit);
  // Removes the pending uncached request `name` and returns its op; kNoOp if there is none.
  OpId TakeUncached(const std::string& name);
  // The entry of `bit` was removed from the cache: if a request of it is pending here, it becomes an uncached request
  // that is not sent yet and keeps its time of submission.
  void Demote(wire::CacheBit bit, const wire::Signature& signature);

  // Sets flushed_words(), which the hint shows, to pending_words().
  void Flush();
  std::span<const uint64_t> pending_words() const { return pending_; }
  std::span<const uint64_t> flushed_words() const { return flushed_; }

  bool empty() const { return hits_pending_ == 0 && uncached_.empty(); }
  size_t hits_pending() const { return hits_pending_; }
  size_t unsent() const { return unsent_; }
  const Hit& hit(wire::CacheBit bit) const { return hits_[bit]; }
  // The kept data of a pending hit, in whole words; empty if there is none.
  std::span<const uint64_t> payload(wire::CacheBit bit) const;
  const ByAge& uncached() const { return uncached_; }
  // Calls f(signature) for each request that is not sent yet, oldest first, and marks it as sent.
  template <typename F>
  void Send(F&& f) {
    for (auto& [submitted_ns, entry] : uncached_) {
      if (!entry.sent) f(entry.signature);
      entry.sent = true;
    }
    unsent_ = 0;
  }
  // Removes every request and calls f(op, signature) for it: cached requests in cache order, then the others.
  template <typename F>
  void Clear(F&& f);

 private:
  Status Duplicate(const wire::Signature& signature, const std::string& key, const wire::Signature& pending) const;
  Status CheckUncachedKeys(const wire::Signature& signature) const;
  void Grow();
  uint32_t KeepPayload(std::span<const std::byte> data);
  void Insert(int64_t submitted_ns, Uncached entry);
  void Remove(ByAge::iterator at);

  using Payload = std::array<uint64_t, kMaxInlineWords>;

  const ResponseCache* const cache_;
  std::vector<Hit> hits_;
  std::vector<Payload> payloads_;  // as many as were ever pending at the same time
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
void TensorQueue::Clear(F&& f) {
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
