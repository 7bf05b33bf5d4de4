// Inline allreduces, which need no exchange but the round: see Note [Operations that ride on a round] in controller.h.
#include <algorithm>

#include "control/controller_impl.h"
#include "control/signature.h"
#include "control/words.h"

namespace horocache::control {

using wire::CacheBit;
using wire::Signature;

// The number of words of one rank's data if the operation may run inline, else 0. An operation with an explicit
// algorithm runs by that algorithm, not inline. Layers do not matter: they are applied before the data comes here.
uint32_t Controller::Impl::RideWords(const Signature& signature, wire::Choice choice) const {
  const std::vector<BackendTraits>& backends = config.selector.backends();
  const bool plain = signature.op == wire::Op::kAllreduce && !signature.tensors.empty() &&
                     signature.device_class == wire::DeviceClass::kCpu && choice.algorithm == 0 &&
                     choice.backend < backends.size() && backends[choice.backend].plain_fold;
  if (!plain) return 0;
  const DType dtype = signature.tensors[0].dtype;
  if (!std::ranges::all_of(signature.tensors, [dtype](const auto& tensor) { return tensor.dtype == dtype; })) return 0;
  const int64_t bytes = SignatureBytes(signature);
  if (bytes > std::min<int64_t>(config.ride_max_bytes, kMaxRideBytes)) return 0;
  return static_cast<uint32_t>((bytes + 7) / 8);
}

void Controller::Impl::WritePayload(std::vector<uint64_t>* payload) const {
  payload->clear();
  if (!joined.empty()) return;
  ForEachCommonBit(table.pending_words(), cache.riding(), [&](CacheBit bit) {
    const std::span<const uint64_t> data = table.payload(bit);
    if (data.empty() || payload->size() + data.size() > kMaxPayloadWords) return false;
    payload->insert(payload->end(), data.begin(), data.end());
    return true;
  });
}

bool Controller::Impl::MayRide(std::span<const uint64_t> words) const {
  if (!joined.empty() || words.size() <= kFirstBitWord) return false;
  bool any = false;
  ForEachCommonBit(words.subspan(kFirstBitWord), cache.riding(), [&any](CacheBit) {
    any = true;
    return false;
  });
  return any;
}

void Controller::Impl::ChooseRides(std::span<const uint64_t> bits, std::span<const Snapshot> snapshots) {
  rides.clear();
  next_ride = 0;
  if (snapshots.size() != static_cast<size_t>(config.size) || !joined.empty()) return;
  ForEachCommonBit(bits, cache.riding(), [this](CacheBit bit) {
    rides.push_back(bit);
    return rides.size() < kMaxPayloadWords;
  });
  ride_offsets.resize(snapshots.size() * kMaxPayloadWords);
  for (size_t rank = 0; rank < snapshots.size(); ++rank) {
    rides.resize(FindRides(snapshots[rank], &ride_offsets[rank * kMaxPayloadWords]));
  }
}

// Returns how many of `rides`, from the first on, have their data in one rank's payload; writes the data's offsets.
size_t Controller::Impl::FindRides(const Snapshot& snapshot, uint8_t* offsets) const {
  if (snapshot.words.size() <= kFirstBitWord) return 0;
  const size_t end = std::min(snapshot.payload.size(), kMaxPayloadWords);
  size_t found = 0, at = 0;
  ForEachCommonBit(std::span(snapshot.words).subspan(kFirstBitWord), cache.riding(), [&](CacheBit bit) {
    const size_t words = cache.At(bit)->ride_words;
    if (found == rides.size() || at + words > end) return false;
    if (bit == rides[found]) offsets[found++] = static_cast<uint8_t>(at);
    at += words;
    return true;
  });
  return found;
}

void Controller::Impl::PlanRide(OpId op, const ResponseCache::Entry& entry, std::span<const Snapshot> snapshots) {
  Plan& plan = planner.AddRide(op, entry.signature, entry.choice, divisor_ranks);
  for (size_t rank = 0; rank < snapshots.size(); ++rank) {
    const auto data = snapshots[rank].payload.begin() + ride_offsets[rank * kMaxPayloadWords + next_ride];
    plan.contributions.insert(plan.contributions.end(), data, data + entry.ride_words);
  }
  ++next_ride;
}

}  // namespace horocache::control
