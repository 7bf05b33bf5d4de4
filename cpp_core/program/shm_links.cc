#include "program/shm_links.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "data/kernels/copy.h"

namespace horocache::program {
namespace {

// Share of each part in the area after the words, in sixteenths. LL and LL128 carry short messages and need little.
constexpr size_t kShares[] = {12, 1, 3};

uintptr_t Address(const std::byte* memory) { return reinterpret_cast<uintptr_t>(memory); }

}  // namespace

ShmLinks::ShmLinks(data::SharedArea area, uint64_t last_flag)
    : area_(std::move(area)), last_flag_(last_flag), touched_(static_cast<size_t>(area_.size), 0) {
  const bool can = !area_.regions.empty() && area_.data_bytes >= sizeof(Words);
  if (can) words(area_.rank).reaches.value.store(1, std::memory_order_release);
}

ShmLinks::Part ShmLinks::PartOf(Protocol protocol) {
  if (protocol == Protocol::kLL) return kWithLL;
  return protocol == Protocol::kLL128 ? kWithLL128 : kPlain;
}

size_t ShmLinks::PartBytes(Part part) const {
  constexpr size_t kUnit = 2 * 128;
  const size_t all = area_.data_bytes < sizeof(Words) ? 0 : area_.data_bytes - sizeof(Words);
  return all / 16 * kShares[part] / 2 / kUnit * kUnit;
}

size_t ShmLinks::PartOffset(Part part) const {
  size_t offset = RoundUp(sizeof(Words), size_t{128});
  for (int before = 0; before < part; ++before) offset += 2 * PartBytes(static_cast<Part>(before));
  return offset;
}

int64_t ShmLinks::MostSlotBytes(Protocol protocol, const Wirings& wirings, int slots) {
  const int ends = wirings.most_ends;
  if (ends > kMostEnds) return 0;
  const auto room = static_cast<int64_t>(PartBytes(PartOf(protocol)));
  return DecodedBytes(protocol, room / (std::max(ends, 1) * slots));
}

void ShmLinks::Begin(const LinkPlan& plan) {
  plan_ = plan;
  wiring_ = &plan.wirings->ranks[static_cast<size_t>(area_.rank)];
  ++operation_;
  ready_ = false;
  protocol_ = plan.protocol;
  const uint64_t rounds = static_cast<uint64_t>(plan.messages()) / static_cast<uint64_t>(plan.slots) + 1;
  if (protocol_ == Protocol::kLL && next_flag_ + rounds > last_flag_ && cleaning_ == 0) cleaning_ = 2;
  if (cleaning_ > 0 && protocol_ == Protocol::kLL) protocol_ = Protocol::kSimple;
  if (protocol_ == Protocol::kLL) first_flag_ = std::exchange(next_flag_, next_flag_ + rounds);
  encoded_ = static_cast<size_t>(EncodedBytes(protocol_, plan.slot_bytes));
  const size_t most =
      protocol_ == Protocol::kSimple || protocol_ == Protocol::kDirect ? 0 : static_cast<size_t>(plan.slot_bytes);
  const auto prepare = [most](std::vector<EndState>* ends, int32_t number) {
    ends->resize(std::max(ends->size(), static_cast<size_t>(number)));
    for (EndState& end : *ends) {
      end.count = end.seen = 0;
      end.decoded = 0;
      end.message.resize(std::max(end.message.size(), most));
    }
  };
  prepare(&out_, wiring_->num_out);
  prepare(&in_, wiring_->num_in);
}

int ShmLinks::Behind() const {
  for (int rank = 0; rank < area_.size; ++rank) {
    if (words(rank).ended.value.load(std::memory_order_acquire) + 2 < operation_) return rank;
  }
  return -1;
}

bool ShmLinks::Ready() {
  if (ready_) return true;
  if (Behind() >= 0) return false;
  if (cleaning_ > 0) CleanFlags();
  return ready_ = true;
}

// Clears the LL flags of the current half, which no rank is reading: all ranks have ended the operation that used it
// last, and the current operation does not use LL. Flags restart at 1 once both halves are cleared.
void ShmLinks::CleanFlags() {
  const size_t bytes = PartBytes(kWithLL);
  std::byte* part = area_.data[static_cast<size_t>(area_.rank)] + PartOffset(kWithLL);
  std::memset(part + operation_ % 2 * bytes, 0, bytes);
  if (--cleaning_ == 0) next_flag_ = 1;
}

void ShmLinks::End() {
  words(area_.rank).ended.value.store(operation_, std::memory_order_release);
  std::ranges::fill(touched_, 1);
}

void ShmLinks::Ring() {
  for (int rank = 0; rank < area_.size; ++rank) {
    if (std::exchange(touched_[static_cast<size_t>(rank)], 0) != 0 && rank != area_.rank && area_.ring) {
      area_.ring(rank);
    }
  }
}

uint64_t ShmLinks::CountOf(const Word& word) const {
  const uint64_t value = word.value.load(std::memory_order_acquire);
  const uint64_t operation = value >> kCountBits;
  if (operation == operation_) return value & ((uint64_t{1} << kCountBits) - 1);
  return operation < operation_ ? 0 : std::numeric_limits<uint64_t>::max();
}

void ShmLinks::Publish(Word* word, uint64_t count) const {
  word->value.store(operation_ << kCountBits | count, std::memory_order_release);
}

std::byte* ShmLinks::Slot(int rank, int end, uint64_t message) const {
  const Part part = PartOf(protocol_);
  const size_t half = PartOffset(part) + operation_ % 2 * PartBytes(part);
  const auto slots = static_cast<uint64_t>(plan_.slots);
  const uint64_t slot = static_cast<uint64_t>(end) * slots + message % slots;
  return area_.data[static_cast<size_t>(rank)] + half + slot * encoded_;
}

std::byte* ShmLinks::SlotBytes(int rank, int end, uint64_t message) const {
  return Slot(rank, end, message) + (protocol_ == Protocol::kDirect ? kCacheLine : 0);
}

uint64_t ShmLinks::FlagOf(uint64_t message) const {
  const uint64_t round = message / static_cast<uint64_t>(plan_.slots);
  return protocol_ == Protocol::kLL ? first_flag_ + round : operation_ << kCountBits | (round + 1);
}

std::byte* ShmLinks::Claim(int thread_block) {
  const Endpoint& end = wiring_->out[static_cast<size_t>(thread_block)];
  EndState& state = out_[static_cast<size_t>(end.here)];
  const auto slots = static_cast<uint64_t>(plan_.slots);
  if (state.count >= slots && state.count - slots >= state.seen) {
    state.seen = CountOf(words(end.peer).popped[end.there]);
    if (state.count - slots >= state.seen) return nullptr;
  }
  return PartOf(protocol_) == kPlain ? SlotBytes(area_.rank, end.here, state.count) : state.message.data();
}

void ShmLinks::PublishPushed(const Endpoint& end, EndState* state) {
  Publish(&words(area_.rank).pushed[end.here], ++state->count);
  Touch(end.peer);
}

void ShmLinks::Push(int thread_block, int64_t bytes) {
  const Endpoint& end = wiring_->out[static_cast<size_t>(thread_block)];
  EndState& state = out_[static_cast<size_t>(end.here)];
  if (PartOf(protocol_) == kPlain) {
    if (protocol_ == Protocol::kDirect) {
      whereabouts(area_.rank, end.here, state.count).store(0, std::memory_order_relaxed);
    }
    return PublishPushed(end, &state);
  }
  std::byte* slot = Slot(area_.rank, end.here, state.count);
  const uint64_t flag = FlagOf(state.count++);
  if (protocol_ == Protocol::kLL) {
    Encode<LowLatencyLine>(&state, slot, bytes, flag);
  } else {
    Encode<LowLatency128Line>(&state, slot, bytes, flag);
  }
  Touch(end.peer);
}

bool ShmLinks::Reaches(int thread_block, const std::byte* memory, int64_t bytes) const {
  if (protocol_ != Protocol::kDirect || area_.regions.empty()) return false;
  const Endpoint& end = wiring_->out[static_cast<size_t>(thread_block)];
  if (words(end.peer).reaches.value.load(std::memory_order_acquire) == 0) return false;
  const uintptr_t at = Address(memory) - RegionAt(area_.rank);
  const size_t size = area_.regions[static_cast<size_t>(area_.rank)].size();
  return at < size && size - at >= static_cast<size_t>(bytes);
}

void ShmLinks::PushFrom(int thread_block, const std::byte* memory) {
  const Endpoint& end = wiring_->out[static_cast<size_t>(thread_block)];
  EndState& state = out_[static_cast<size_t>(end.here)];
  const uint64_t at = Address(memory) - RegionAt(area_.rank);
  whereabouts(area_.rank, end.here, state.count).store((at + 1) << 1, std::memory_order_relaxed);
  PublishPushed(end, &state);
}

uint64_t ShmLinks::Popped(int thread_block) {
  const Endpoint& end = wiring_->out[static_cast<size_t>(thread_block)];
  return CountOf(words(end.peer).popped[end.there]);
}

bool ShmLinks::Retract(int thread_block, uint64_t message, const std::byte* memory, int64_t bytes) {
  if (Popped(thread_block) > message) return true;
  const Endpoint& end = wiring_->out[static_cast<size_t>(thread_block)];
  DirectLocation& where = whereabouts(area_.rank, end.here, message);
  uint64_t there = where.load(std::memory_order_acquire);
  if ((there & kTaken) != 0) return false;
  data::Copy(SlotBytes(area_.rank, end.here, message), memory, static_cast<size_t>(bytes), true);
  return where.compare_exchange_strong(there, 0, std::memory_order_acq_rel);
}

const std::byte* ShmLinks::Peek(int thread_block, int64_t bytes) {
  const Endpoint& end = wiring_->in[static_cast<size_t>(thread_block)];
  EndState& state = in_[static_cast<size_t>(end.here)];
  if (PartOf(protocol_) == kPlain) {
    if (state.count >= state.seen) state.seen = CountOf(words(end.peer).pushed[end.there]);
    return state.count < state.seen ? SlotBytes(end.peer, end.there, state.count) : nullptr;
  }
  const std::byte* slot = Slot(end.peer, end.there, state.count);
  const uint64_t flag = FlagOf(state.count);
  const bool whole = protocol_ == Protocol::kLL ? Decode<LowLatencyLine>(&state, slot, bytes, flag)
                                                : Decode<LowLatency128Line>(&state, slot, bytes, flag);
  return whole ? state.message.data() : nullptr;
}

const std::byte* ShmLinks::Take(int thread_block, const std::byte* peeked) {
  if (protocol_ != Protocol::kDirect) return peeked;
  const Endpoint& end = wiring_->in[static_cast<size_t>(thread_block)];
  DirectLocation& where = whereabouts(end.peer, end.there, in_[static_cast<size_t>(end.here)].count);
  uint64_t there = where.load(std::memory_order_acquire);
  while (there != 0 && !where.compare_exchange_weak(there, there | kTaken, std::memory_order_acq_rel)) {
  }
  if (there == 0) return peeked;  // sent in the slot, or taken back into it
  return reinterpret_cast<const std::byte*>(RegionAt(end.peer) + (there >> 1) - 1);
}

void ShmLinks::Pop(int thread_block) {
  const Endpoint& end = wiring_->in[static_cast<size_t>(thread_block)];
  EndState& state = in_[static_cast<size_t>(end.here)];
  state.decoded = 0;
  Publish(&words(area_.rank).popped[end.here], ++state.count);
  Touch(end.peer);
}

// An empty message has a line, too: the line's flag announces it.
template <typename Line>
void ShmLinks::Encode(EndState* state, std::byte* slot, int64_t bytes, uint64_t flag) const {
  int64_t at = 0;
  do {
    Line::Write(slot, state->message.data() + at, std::min(Line::kData, bytes - at), flag);
    slot += Line::kBytes;
    at += Line::kData;
  } while (at < bytes);
}

template <typename Line>
bool ShmLinks::Decode(EndState* state, const std::byte* slot, int64_t bytes, uint64_t flag) const {
  do {
    const int64_t at = state->decoded * Line::kData;
    if (at > 0 && at >= bytes) break;
    const int64_t part = std::min(Line::kData, bytes - at);
    if (!Line::Read(slot + state->decoded * Line::kBytes, state->message.data() + at, part, flag)) return false;
    ++state->decoded;
  } while (true);
  return true;
}

}  // namespace horocache::program
