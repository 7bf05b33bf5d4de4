// The receiving and sending of RelayAgreement's frames; the decisions are in relay.cc.
#include <algorithm>
#include <span>
#include <utility>

#include "control/strategies/relay.h"

namespace horocache::control {

StatusOr<bool> RelayAgreement::ReceiveAll(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  const uint64_t round = controller.round();
  bool moved = TakePublished(controller, channel);
  for (int from = -1; controller.round() == round && channel.Receive(&from, &bytes_);) {
    if (Status status = Handle(controller, channel, from, now_ns); !status.ok()) {
      return Status(status.code(), "from " + controller.config().names.Text(from) + " in round " +
                                       std::to_string(round) + ": " + status.message());
    }
    moved = true;
    if (urgent_ && urgent_since_ns_ < 0) urgent_since_ns_ = now_ns;
  }
  return moved;
}

Status RelayAgreement::Handle(Controller& controller, ControlChannel& channel, int from, int64_t now_ns) {
  StatusOr<RelayFrame> frame = DecodeFrame(std::as_bytes(std::span(bytes_)), channel.size());
  if (!frame.ok()) return frame.status();
  // The controller counts frames of other process sets and epochs.
  const StatusOr<bool> ours = controller.Accept(
      wire::ResponseList{.process_set = frame->process_set, .epoch = frame->epoch, .round = controller.round()});
  if (!ours.ok()) return ours.status();
  if (!*ours) return Status::Ok();
  // An alert may arrive after the end of its round; every other frame must be of the current round.
  if (frame->kind == RelayFrame::Kind::kAlert && frame->round < controller.round()) return Status::Ok();
  if (frame->round != controller.round()) {
    return {StatusCode::kCorrupt, "a frame is of round " + std::to_string(frame->round) + "."};
  }
  if (Child* child = ChildOf(from); child != nullptr) return HandleFromChild(child, &*frame);
  if (from == parent_) return HandleFromParent(controller, channel, *frame, now_ns);
  return {StatusCode::kCorrupt, "a frame came from a rank that is neither parent nor child."};
}

Status RelayAgreement::HandleFromChild(Child* child, RelayFrame* frame) {
  switch (frame->kind) {
    case RelayFrame::Kind::kAlert:
      urgent_ = true;
      return Status::Ok();
    case RelayFrame::Kind::kUp:
      if (child->in || frame->words.empty()) break;
      child->in = true;
      child->words = std::move(frame->words);
      requests_.Add(std::move(frame->requests), std::move(frame->lists));
      return Status::Ok();
    case RelayFrame::Kind::kLists:
      if (!listing_ || child->lists_in) break;
      child->lists_in = true;
      requests_.Add(std::move(frame->requests), std::move(frame->lists));
      return Status::Ok();
    default:
      break;
  }
  return {StatusCode::kCorrupt, "a child's frame has no place in this round."};
}

Status RelayAgreement::HandleFromParent(Controller& controller, ControlChannel& channel, const RelayFrame& frame,
                                        int64_t now_ns) {
  switch (frame.kind) {
    case RelayFrame::Kind::kPoll:
      urgent_ = alerted_ = true;
      return Status::Ok();
    case RelayFrame::Kind::kAskOwing:
      polled_ = true;
      return Status::Ok();
    case RelayFrame::Kind::kBitvector:
    case RelayFrame::Kind::kResult: {
      if (!passed_up_ || and_applied_ == !frame.words.empty()) break;
      SendDown(controller, channel, bytes_);
      if (!frame.words.empty()) {
        and_ = frame.words;
        outcome_ = controller.ApplyAnd(and_);
        and_applied_ = true;
      }
      if (frame.kind == RelayFrame::Kind::kBitvector) {
        if (!NeedsLists(outcome_)) break;
        BeginLists(controller, now_ns);
        return Status::Ok();
      }
      if (outcome_.gather != frame.has_responses || listing_ != NeedsLists(outcome_)) break;
      if (!frame.has_responses) return EndRound(controller, nullptr);
      const StatusOr<bool> ours = controller.Accept(frame.responses);
      if (!ours.ok()) return ours.status();
      return EndRound(controller, &frame.responses);
    }
    default:
      break;
  }
  return {StatusCode::kCorrupt, "the parent's frame has no place in this round."};
}

bool RelayAgreement::Shares(const ControlChannel& channel, int rank) const {
  if (!options_.share_bitvectors || !channel.SharesBitvector(rank)) return false;
  const auto host = [&](int of) { return options_.host_of[static_cast<size_t>(of)]; };
  return options_.host_of.empty() || host(rank) == host(channel.rank());
}

bool RelayAgreement::TakePublished(const Controller& controller, ControlChannel& channel) {
  bool moved = false;
  for (Child& child : children_) {
    if (child.in || !Shares(channel, child.rank)) continue;
    child.in = channel.ReadPublished(child.rank, controller.round(), &child.words, nullptr);
    moved |= child.in;
  }
  return moved;
}

// ---- sending

RelayFrame RelayAgreement::NewFrame(const Controller& controller, RelayFrame::Kind kind) const {
  RelayFrame frame;
  frame.kind = kind;
  frame.process_set = controller.config().process_set;
  frame.epoch = controller.config().epoch;
  frame.round = controller.round();
  return frame;
}

void RelayAgreement::Send(Controller& controller, ControlChannel& channel, int to, const std::string& bytes) {
  channel.Send(to, bytes);
  channel.Progress();
  channel.Ring(to);
  controller.CountSent(1, bytes.size());
}

void RelayAgreement::SendFrame(Controller& controller, ControlChannel& channel, int to, const RelayFrame& frame) {
  std::string bytes;
  EncodeFrame(frame, &bytes);
  Send(controller, channel, to, bytes);
}

void RelayAgreement::SendDown(Controller& controller, ControlChannel& channel, const std::string& bytes) {
  for (const Child& child : children_) Send(controller, channel, child.rank, bytes);
}

RelayAgreement::Child* RelayAgreement::ChildOf(int rank) {
  const auto found = std::ranges::lower_bound(children_, rank, {}, &Child::rank);
  return found == children_.end() || found->rank != rank ? nullptr : &*found;
}

}  // namespace horocache::control
