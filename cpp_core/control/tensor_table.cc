#include "control/tensor_table.h"

#include "base/text.h"
#include "control/signature.h"
#include "control/words.h"

namespace horocache::control {

using wire::CacheBit;
using wire::Signature;

Status TensorTable::AddHit(OpId op, CacheBit bit, int64_t now_ns) {
  const ResponseCache::Entry& entry = *cache_->At(bit);
  if (bit >= hits_.size()) Grow();
  if (hits_[bit].op != kNoOp) return Duplicate(*entry.signature, entry.signature->name, *entry.signature);
  for (const CacheBit other : entry.overlaps) {
    if (other < hits_.size() && hits_[other].op != kNoOp) {
      return Duplicate(*entry.signature, entry.signature->name, *cache_->At(other)->signature);
    }
  }
  if (!uncached_.empty()) HC_RETURN_IF_ERROR(CheckUncachedKeys(*entry.signature));
  hits_[bit] = {op, now_ns};
  ++hits_pending_;
  SetBit(pending_, bit);
  return Status::Ok();
}

Status TensorTable::AddUncached(OpId op, const Signature& signature, int64_t now_ns) {
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
  Insert(uncached_.end(), {op, signature, now_ns, false});
  return Status::Ok();
}

OpId TensorTable::TakeHit(CacheBit bit) {
  if (bit >= hits_.size() || hits_[bit].op == kNoOp) return kNoOp;
  const OpId op = hits_[bit].op;
  hits_[bit].op = kNoOp;
  --hits_pending_;
  ClearBit(pending_, bit);
  if (bit / 64 < flushed_.size()) ClearBit(flushed_, bit);
  return op;
}

OpId TensorTable::TakeUncached(const std::string& name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return kNoOp;
  const OpId op = found->second->op;
  Remove(found->second);
  return op;
}

void TensorTable::Demote(CacheBit bit, const Signature& signature) {
  if (bit >= hits_.size() || hits_[bit].op == kNoOp) return;
  const Hit hit = hits_[bit];
  TakeHit(bit);
  auto before = uncached_.begin();
  while (before != uncached_.end() && before->submitted_ns <= hit.submitted_ns) ++before;
  Insert(before, {hit.op, signature, hit.submitted_ns, false});
}

void TensorTable::Flush() { flushed_.assign(pending_.begin(), pending_.end()); }

Status TensorTable::Duplicate(const Signature& signature, const std::string& key, const Signature& pending) const {
  std::string text = Describe(signature) + " was submitted while ";
  if (pending.name == signature.name) {
    text += "an operation of this name is pending here. ";
  } else {
    text += "its tensor '" + Printable(key) + "' is pending here as a part of " + Describe(pending) + ". ";
  }
  return {StatusCode::kDuplicateName, text + "Wait for it first, or give the operation another name."};
}

Status TensorTable::CheckUncachedKeys(const Signature& signature) const {
  Status status;
  ForEachKey(signature, [&](const std::string& key) {
    if (!status.ok()) return;
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
      status = Duplicate(signature, key, found->second->signature);
    }
  });
  return status;
}

void TensorTable::Grow() {
  pending_.resize(cache_->num_words());
  hits_.resize(64 * cache_->num_words());
}

void TensorTable::Insert(std::list<Uncached>::iterator before, Uncached entry) {
  const auto at = uncached_.insert(before, std::move(entry));
  by_name_.emplace(at->signature.name, at);
  ForEachKey(at->signature, [&](const std::string& key) { by_key_.emplace(key, at); });
  if (!at->sent) ++unsent_;
}

void TensorTable::Remove(std::list<Uncached>::iterator entry) {
  by_name_.erase(entry->signature.name);
  ForEachKey(entry->signature, [&](const std::string& key) { by_key_.erase(key); });
  if (!entry->sent) --unsent_;
  uncached_.erase(entry);
}

}  // namespace horocache::control
