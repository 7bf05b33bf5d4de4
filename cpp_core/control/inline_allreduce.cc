// Inline allreduces, which need no exchange but the round: see Note [Inline allreduces] in controller.h.
#include <algorithm>

#include "control/bitvector.h"
#include "control/controller.h"
#include "control/signature.h"

namespace horocache::control {

using wire::CacheBit;
using wire::Signature;

// The number of words of one rank's data if the operation may run inline, else 0. An operation with an explicit
// algorithm runs by that algorithm, not inline. Layers do not matter: they are applied before the data comes here.
uint32_t Controller::InlineWords(const Signature& signature, wire::Choice choice) const {
  const std::vector<BackendTraits>& backends = config_.selector.backends();
  const bool plain = signature.op == wire::Op::kAllreduce && !signature.tensors.empty() &&
                     signature.device_class == wire::DeviceClass::kCpu && choice.algorithm == 0 &&
                     choice.backend < backends.size() && backends[choice.backend].plain_fold;
  if (!plain) return 0;
  const DType dtype = signature.tensors[0].dtype;
  if (!std::ranges::all_of(signature.tensors, [dtype](const auto& tensor) { return tensor.dtype == dtype; })) return 0;
  const int64_t bytes = SignatureBytes(signature);
  if (bytes > std::min<int64_t>(config_.inline_max_bytes, kMaxInlineBytes)) return 0;
  return static_cast<uint32_t>((bytes + 7) / 8);
}

void Controller::WritePayload(std::vector<uint64_t>* payload) const {
  payload->clear();
  if (!joined_.empty()) return;
  ForEachCommonBit(queue_.pending_words(), cache_.inline_bits(), [&](CacheBit bit) {
    const std::span<const uint64_t> data = queue_.payload(bit);
    if (data.empty() || payload->size() + data.size() > kMaxPayloadWords) return false;
    payload->insert(payload->end(), data.begin(), data.end());
    return true;
  });
}

bool Controller::MayRunInline(std::span<const uint64_t> words) const {
  if (!joined_.empty()) return false;
  bool any = false;
  ForEachCommonBit(Bitvector(words).cache_bits(), cache_.inline_bits(), [&any](CacheBit) {
    any = true;
    return false;
  });
  return any;
}

void Controller::ChooseInline(std::span<const uint64_t> bits, std::span<const Snapshot> snapshots) {
  inline_bits_.clear();
  next_inline_ = 0;
  if (snapshots.size() != static_cast<size_t>(config_.size) || !joined_.empty()) return;
  ForEachCommonBit(bits, cache_.inline_bits(), [this](CacheBit bit) {
    inline_bits_.push_back(bit);
    return inline_bits_.size() < kMaxPayloadWords;
  });
  inline_offsets_.resize(snapshots.size() * kMaxPayloadWords);
  for (size_t rank = 0; rank < snapshots.size(); ++rank) {
    inline_bits_.resize(FindInline(snapshots[rank], &inline_offsets_[rank * kMaxPayloadWords]));
  }
}

// Returns how many of `inline_bits_`, from the first on, have their data in one rank's payload; writes the data's
// offsets.
size_t Controller::FindInline(const Snapshot& snapshot, uint8_t* offsets) const {
  const size_t end = std::min(snapshot.payload.size(), kMaxPayloadWords);
  size_t found = 0, at = 0;
  ForEachCommonBit(Bitvector(snapshot.words).cache_bits(), cache_.inline_bits(), [&](CacheBit bit) {
    const size_t words = cache_.At(bit)->inline_words;
    if (found == inline_bits_.size() || at + words > end) return false;
    if (bit == inline_bits_[found]) offsets[found++] = static_cast<uint8_t>(at);
    at += words;
    return true;
  });
  return found;
}

void Controller::PlanInline(OpId op, const ResponseCache::Entry& entry, std::span<const Snapshot> snapshots) {
  Plan& plan = planner_.AddInline(op, entry.signature, entry.choice, divisor_ranks_);
  for (size_t rank = 0; rank < snapshots.size(); ++rank) {
    const auto data = snapshots[rank].payload.begin() + inline_offsets_[rank * kMaxPayloadWords + next_inline_];
    plan.contributions.insert(plan.contributions.end(), data, data + entry.inline_words);
  }
  ++next_inline_;
}

}  // namespace horocache::control
