// Inline allreduces, which need no exchange but the round: see Note [Inline allreduces] in controller.h.
#include <algorithm>

#include "control/bitvector.h"
#include "control/controller_impl.h"
#include "control/signature.h"

namespace horocache::control {

using wire::CacheBit;
using wire::Signature;

// The number of words of one rank's data if the operation may run inline, else 0. An operation with an explicit
// algorithm runs by that algorithm, not inline. Layers do not matter: they are applied before the data comes here.
uint32_t Controller::Impl::InlineWords(const Signature& signature, wire::Choice choice) const {
  const std::vector<BackendTraits>& backends = config.selector.backends();
  const bool plain = signature.op == wire::Op::kAllreduce && !signature.tensors.empty() &&
                     signature.device_class == wire::DeviceClass::kCpu && choice.algorithm == 0 &&
                     choice.backend < backends.size() && backends[choice.backend].plain_fold;
  if (!plain) return 0;
  const DType dtype = signature.tensors[0].dtype;
  if (!std::ranges::all_of(signature.tensors, [dtype](const auto& tensor) { return tensor.dtype == dtype; })) return 0;
  const int64_t bytes = SignatureBytes(signature);
  if (bytes > std::min<int64_t>(config.inline_max_bytes, kMaxInlineBytes)) return 0;
  return static_cast<uint32_t>((bytes + 7) / 8);
}

void Controller::Impl::WritePayload(std::vector<uint64_t>* payload) const {
  payload->clear();
  if (!joined.empty()) return;
  ForEachCommonBit(table.pending_words(), cache.inline_bits(), [&](CacheBit bit) {
    const std::span<const uint64_t> data = table.payload(bit);
    if (data.empty() || payload->size() + data.size() > kMaxPayloadWords) return false;
    payload->insert(payload->end(), data.begin(), data.end());
    return true;
  });
}

bool Controller::Impl::MayRunInline(std::span<const uint64_t> words) const {
  if (!joined.empty()) return false;
  bool any = false;
  ForEachCommonBit(Bitvector(words).cache_bits(), cache.inline_bits(), [&any](CacheBit) {
    any = true;
    return false;
  });
  return any;
}

void Controller::Impl::ChooseInline(std::span<const uint64_t> bits, std::span<const Snapshot> snapshots) {
  inline_bits.clear();
  next_inline = 0;
  if (snapshots.size() != static_cast<size_t>(config.size) || !joined.empty()) return;
  ForEachCommonBit(bits, cache.inline_bits(), [this](CacheBit bit) {
    inline_bits.push_back(bit);
    return inline_bits.size() < kMaxPayloadWords;
  });
  inline_offsets.resize(snapshots.size() * kMaxPayloadWords);
  for (size_t rank = 0; rank < snapshots.size(); ++rank) {
    inline_bits.resize(FindInline(snapshots[rank], &inline_offsets[rank * kMaxPayloadWords]));
  }
}

// Returns how many of `inline_bits`, from the first on, have their data in one rank's payload; writes the data's
// offsets.
size_t Controller::Impl::FindInline(const Snapshot& snapshot, uint8_t* offsets) const {
  const size_t end = std::min(snapshot.payload.size(), kMaxPayloadWords);
  size_t found = 0, at = 0;
  ForEachCommonBit(Bitvector(snapshot.words).cache_bits(), cache.inline_bits(), [&](CacheBit bit) {
    const size_t words = cache.At(bit)->inline_words;
    if (found == inline_bits.size() || at + words > end) return false;
    if (bit == inline_bits[found]) offsets[found++] = static_cast<uint8_t>(at);
    at += words;
    return true;
  });
  return found;
}

void Controller::Impl::PlanInline(OpId op, const ResponseCache::Entry& entry, std::span<const Snapshot> snapshots) {
  Plan& plan = planner.AddInline(op, entry.signature, entry.choice, divisor_ranks);
  for (size_t rank = 0; rank < snapshots.size(); ++rank) {
    const auto data = snapshots[rank].payload.begin() + inline_offsets[rank * kMaxPayloadWords + next_inline];
    plan.contributions.insert(plan.contributions.end(), data, data + entry.inline_words);
  }
  ++next_inline;
}

}  // namespace horocache::control
