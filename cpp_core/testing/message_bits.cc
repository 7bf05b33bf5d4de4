#include "testing/message_bits.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "base/duration.h"
#include "control/bitvector.h"
#include "wire/codec.h"

namespace horocache::testing {

namespace {

constexpr char kWordsMagic = 'W';
constexpr size_t kHeaderBytes = 1 + 1 + sizeof(uint64_t);

int Largest2(int size) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(size))); }

std::span<const std::byte> Bytes(const std::string& frame) { return std::as_bytes(std::span(frame)); }

}  // namespace

StatusOr<bool> MessageBitsAgreement::Step(control::Controller& controller, control::ControlChannel& channel,
                                          int64_t now_ns) {
  bool moved = channel.Progress();
  HC_RETURN_IF_ERROR(Receive(channel));
  if (state_ == State::kIdle) {
    const bool called =
        std::ranges::any_of(received_, [&](const auto& entry) { return entry.first.first == controller.round(); });
    if (!called && !controller.HasUnflushed() && controller.Raised() == 0) return moved;
    round_ = controller.round();
    controller.Freeze(&words_);
    phase_ = 0;
    sent_ = false;
    state_ = State::kReducing;
    moved = true;
  }
  if (state_ == State::kReducing) {
    if (!Reduce(channel)) return channel.Progress() || moved;
    moved = true;
    outcome_ = controller.ApplyAnd(words_);
    received_.erase(received_.begin(), received_.lower_bound({round_ + 1, 0}));
    if (!outcome_.gather) {
      HC_RETURN_IF_ERROR(controller.Finish(nullptr));
      state_ = State::kIdle;
      channel.Progress();
      return true;
    }
    wire::RequestList list;
    controller.FillRequests(outcome_, now_ns, &list);
    state_ = State::kAwaiting;
    if (channel.rank() == 0) {
      lists_.push_back(std::move(list));
      state_ = State::kGathering;
    } else {
      std::string frame;
      wire::Encode(list, &frame);
      channel.Send(0, frame);
    }
  }
  const StatusOr<bool> gathered = Gather(controller, channel, now_ns);
  if (!gathered.ok()) return gathered.status();
  return channel.Progress() || *gathered || moved;
}

Status MessageBitsAgreement::Receive(control::ControlChannel& channel) {
  std::string frame;
  for (int from = -1; channel.Receive(&from, &frame);) {
    if (!frame.empty() && frame[0] == kWordsMagic && frame.size() >= kHeaderBytes) {
      uint64_t round = 0;
      std::memcpy(&round, frame.data() + 2, sizeof(round));
      std::vector<uint64_t> words((frame.size() - kHeaderBytes) / sizeof(uint64_t));
      std::memcpy(words.data(), frame.data() + kHeaderBytes, words.size() * sizeof(uint64_t));
      received_[{round, frame[1]}] = std::move(words);
    } else if (channel.rank() == 0) {
      auto list = wire::DecodeRequestList(Bytes(frame));
      if (!list.ok()) return list.status();
      lists_.push_back(std::move(*list));
    } else {
      auto responses = wire::DecodeResponseList(Bytes(frame));
      if (!responses.ok()) return responses.status();
      responses_.push_back(std::move(*responses));
    }
  }
  return Status::Ok();
}

// AND-reduces words_ by recursive doubling. Returns true once words_ is the result.
//
// Let p be the largest power of two up to the number of ranks n. Phase 0: rank p + i sends its words to rank i. Phases
// 1 to log2(p): ranks below p exchange words with the rank that differs in bit phase - 1. Last phase: rank i sends the
// result to rank p + i. With n = 6 and p = 4, ranks 4 and 5 send to 0 and 1; then 0-1 and 2-3 exchange, then 0-2 and
// 1-3; then 0 and 1 send the result to 4 and 5.
bool MessageBitsAgreement::Reduce(control::ControlChannel& channel) {
  const int rank = channel.rank(), power = Largest2(channel.size()), beyond = channel.size() - power;
  const int last = std::countr_zero(static_cast<unsigned>(power)) + 1;
  if (rank >= power) {
    if (!sent_) SendWords(channel, rank - power, 0);
    const auto result = received_.find({round_, last});
    if (result == received_.end()) return false;
    words_ = result->second;
    return true;
  }
  for (; phase_ < last; ++phase_, sent_ = false) {
    if (phase_ == 0) {
      if (rank < beyond && !TakeWords(0)) return false;
      continue;
    }
    if (!sent_) SendWords(channel, rank ^ (1 << (phase_ - 1)), phase_);
    if (!TakeWords(phase_)) return false;
  }
  if (rank < beyond) SendWords(channel, rank + power, last);
  return true;
}

void MessageBitsAgreement::SendWords(control::ControlChannel& channel, int to, int phase) {
  std::string frame(kHeaderBytes + words_.size() * sizeof(uint64_t), kWordsMagic);
  frame[1] = static_cast<char>(phase);
  std::memcpy(frame.data() + 2, &round_, sizeof(round_));
  std::memcpy(frame.data() + kHeaderBytes, words_.data(), words_.size() * sizeof(uint64_t));
  channel.Send(to, frame);
  sent_ = true;
}

bool MessageBitsAgreement::TakeWords(int phase) {
  const auto found = received_.find({round_, phase});
  if (found == received_.end()) return false;
  control::AndInto(found->second, &words_);
  return true;
}

StatusOr<bool> MessageBitsAgreement::Gather(control::Controller& controller, control::ControlChannel& channel,
                                            int64_t now_ns) {
  if (state_ == State::kGathering && lists_.size() == static_cast<size_t>(channel.size())) {
    wire::ResponseList responses;
    HC_RETURN_IF_ERROR(controller.Coordinate(lists_, outcome_, now_ns, &responses));
    lists_.clear();
    std::string frame;
    wire::Encode(responses, &frame);
    for (int rank = 1; rank < channel.size(); ++rank) channel.Send(rank, frame);
    HC_RETURN_IF_ERROR(controller.Finish(&responses));
    state_ = State::kIdle;
    return true;
  }
  if (state_ == State::kAwaiting && !responses_.empty()) {
    HC_RETURN_IF_ERROR(controller.Finish(&responses_.front()));
    responses_.clear();
    state_ = State::kIdle;
    return true;
  }
  return false;
}

int64_t MessageBitsAgreement::NextWakeNs() const { return kNever; }

}  // namespace horocache::testing
