#include "control/tensor_queue.h"

#include <cstring>
#include <utility>

#include "base/text.h"
#include "control/signature.h"

namespace horocache::control {

using wire::CacheBit;
using wire::Signature;

Status TensorQueue::AddHit(OpId op, CacheBit bit, int64_t now_ns, std::span<const std::byte> data) {
  const ResponseCache::Entry& entry = *cache_->At(bit);
  if (bit >= hits_.size()) Grow();
  if (hits_[bit].op != kNoOp) return Duplicate(*entry.signature, entry.signature->name, *entry.signature);
  for (const CacheBit other : entry.overlaps) {
    if (other < hits_.size() && hits_[other].op != kNoOp) {
      return Duplicate(*entry.signature, entry.signature->name, *cache_->At(other)->signature);
    }
  }
  if (!uncached_.empty()) HC_RETURN_IF_ERROR(CheckUncachedKeys(*entry.signature));
  const bool keep = entry.inline_words > 0 && static_cast<int64_t>(data.size()) == entry.bytes;
  hits_[bit] = {op, now_ns, keep ? KeepPayload(data) : kNoPayload};
  ++hits_pending_;
  SetBit(pending_, bit);
  return Status::Ok();
}

Status TensorQueue::AddUncached(OpId op, const Signature& signature, int64_t now_ns) {
  HC_RETURN_IF_ERROR(CheckUncachedKeys(signature));
  Status status;
  ForEachKey(signature, [&](const std::string& key) {
    const std::vector<CacheBit>* bits = cache_->WithKey(key);
    if (bits == nullptr || !status.ok()) return;
    for (const CacheBit bit : *bits) {
      if (bit < hits_.size() && hits_[bit].op != kNoOp) status = Duplicate(signature, key, *cache_->At(bit)->signature);
    }
  });
  HC_RETURN_IF_ERROR(status);
  Insert(now_ns, {op, signature, false});
  return Status::Ok();
}

OpId TensorQueue::TakeHit(CacheBit bit) {
  if (bit >= hits_.size() || hits_[bit].op == kNoOp) return kNoOp;
  const OpId op = std::exchange(hits_[bit].op, kNoOp);
  if (hits_[bit].payload != kNoPayload) free_payloads_.push_back(std::exchange(hits_[bit].payload, kNoPayload));
  --hits_pending_;
  ClearBit(pending_, bit);
  if (bit / 64 < flushed_.size()) ClearBit(flushed_, bit);
  return op;
}

OpId TensorQueue::TakeUncached(const std::string& name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return kNoOp;
  const OpId op = found->second->second.op;
  Remove(found->second);
  return op;
}

void TensorQueue::Demote(CacheBit bit, const Signature& signature) {
  if (bit >= hits_.size() || hits_[bit].op == kNoOp) return;
  const Hit hit = hits_[bit];
  TakeHit(bit);
  Insert(hit.submitted_ns, {hit.op, signature, false});
}

uint32_t TensorQueue::KeepPayload(std::span<const std::byte> data) {
  if (free_payloads_.empty()) {
    free_payloads_.push_back(static_cast<uint32_t>(payloads_.size()));
    payloads_.emplace_back();
  }
  const uint32_t index = free_payloads_.back();
  free_payloads_.pop_back();
  Payload& payload = payloads_[index];
  payload[(data.size() - 1) / sizeof(uint64_t)] = 0;  // zeroes the unused bytes of the last word
  std::memcpy(payload.data(), data.data(), data.size());
  return index;
}

std::span<const uint64_t> TensorQueue::payload(CacheBit bit) const {
  if (bit >= hits_.size() || hits_[bit].payload == kNoPayload) return {};
  return std::span(payloads_[hits_[bit].payload]).first(cache_->At(bit)->inline_words);
}

void TensorQueue::Flush() { flushed_.assign(pending_.begin(), pending_.end()); }

Status TensorQueue::Duplicate(const Signature& signature, const std::string& key, const Signature& pending) const {
  std::string text = Describe(signature) + " was submitted while ";
  if (pending.name == signature.name) {
    text += "an operation of this name is pending here. ";
  } else {
    text += "its tensor '" + Printable(key) + "' is pending here as a part of " + Describe(pending) + ". ";
  }
  return {StatusCode::kDuplicateName, text + "Wait for it first, or give the operation another name."};
}

Status TensorQueue::CheckUncachedKeys(const Signature& signature) const {
  Status status;
  ForEachKey(signature, [&](const std::string& key) {
    if (!status.ok()) return;
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
      status = Duplicate(signature, key, found->second->second.signature);
    }
  });
  return status;
}

void TensorQueue::Grow() {
  pending_.resize(cache_->num_words());
  hits_.resize(64 * cache_->num_words());
}

void TensorQueue::Insert(int64_t submitted_ns, Uncached entry) {
  const auto at = uncached_.emplace(submitted_ns, std::move(entry));
  const Signature& signature = at->second.signature;
  by_name_.emplace(signature.name, at);
  ForEachKey(signature, [&](const std::string& key) { by_key_.emplace(key, at); });
  if (!at->second.sent) ++unsent_;
}

void TensorQueue::Remove(ByAge::iterator at) {
  const Uncached& entry = at->second;
  by_name_.erase(entry.signature.name);
  ForEachKey(entry.signature, [&](const std::string& key) { by_key_.erase(key); });
  if (!entry.sent) --unsent_;
  uncached_.erase(at);
}

}  // namespace horocache::control
