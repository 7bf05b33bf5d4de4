#include "control/strategies/relay.h"

#include <algorithm>
#include <utility>

#include "base/duration.h"
#include "control/bitvector.h"
#include "control/strategies/deadline.h"
#include "wire/codec.h"

namespace horocache::control {

namespace {

// True if `words` have a bit that `result` lacks.
bool LeavesSome(const std::vector<uint64_t>& words, const std::vector<uint64_t>& result) {
  const auto mine = Bitvector(words).cache_bits(), agreed = Bitvector(result).cache_bits();
  for (size_t i = 0; i < mine.size(); ++i) {
    if ((mine[i] & ~(i < agreed.size() ? agreed[i] : 0)) != 0) return true;
  }
  return false;
}

uint64_t GatherFlags(const std::vector<uint64_t>& words) { return Bitvector(words).raised() & kGatherFlags; }

}  // namespace

StatusOr<bool> RelayAgreement::Step(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  Start(channel);
  bool moved = channel.Progress();
  if (controller.closed()) {
    wake_ns_ = kNever;
    return moved;
  }
  controller.Inspect(now_ns);
  const uint64_t round = controller.round();
  // At most one round per step: the caller hands out its decisions before the next snapshot is frozen.
  for (bool again = true; again && controller.round() == round && !controller.closed();) {
    const StatusOr<bool> received = ReceiveAll(controller, channel, now_ns);
    if (!received.ok()) return received.status();
    again = *received;
    if (controller.round() == round && !controller.closed()) {
      const StatusOr<bool> stepped = StepRound(controller, channel, now_ns);
      if (!stepped.ok()) return stepped.status();
      again |= *stepped;
    }
    moved |= again;
  }
  HC_RETURN_IF_ERROR(CheckOverdue(controller, channel, now_ns));
  wake_ns_ = ComputeWake(controller);
  return channel.Progress() || moved;
}

void RelayAgreement::Start(const ControlChannel& channel) {
  if (std::exchange(started_, true)) return;
  Place place;
  switch (options_.shape) {
    case RelayOptions::Shape::kStar:
      place = StarPlace(channel.rank(), channel.size());
      break;
    case RelayOptions::Shape::kTree:
      place = TreePlace(channel.rank(), channel.size(), options_.radix);
      break;
    case RelayOptions::Shape::kHosts:
      place = HostPlace(channel.rank(), channel.size(), options_.radix, options_.host_of);
      break;
  }
  parent_ = place.parent;
  for (const int rank : place.children) children_.push_back(Child{.rank = rank});
}

// ---- a round

StatusOr<bool> RelayAgreement::StepRound(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  bool moved = false;
  FlushIfDue(controller, now_ns);
  if (!in_ && MustContribute(controller, now_ns)) {
    Contribute(controller, channel, now_ns);
    moved = true;
  }
  if (!controller.config().tick) AskTheSilent(controller, channel);
  if (urgent_ && urgent_since_ns_ < 0) urgent_since_ns_ = now_ns;
  if (in_ && !passed_up_ && AllIn()) {
    moved = passed_up_ = true;
    if (IsRoot()) {
      HC_RETURN_IF_ERROR(Decide(controller, channel, now_ns));
    } else {
      PassUp(controller, channel);
    }
  }
  const bool all_lists = std::ranges::all_of(children_, &Child::lists_in);
  if (listing_ && !lists_passed_up_ && all_lists) {
    moved = lists_passed_up_ = true;
    if (IsRoot()) {
      HC_RETURN_IF_ERROR(Answer(controller, channel, now_ns));
    } else {
      PassListsUp(controller, channel);
    }
  }
  return moved;
}

bool RelayAgreement::MustContribute(const Controller& controller, int64_t now_ns) const {
  const bool news = HasNews(controller, now_ns);
  if (controller.config().tick) return news;
  return news || polled_ || urgent_ || (owes_ && std::ranges::any_of(children_, &Child::in));
}

// A flush also happens in a round to which this rank has already contributed: the new requests may need the
// coordinator, and then the round must not wait for ranks that have nothing to contribute.
void RelayAgreement::FlushIfDue(Controller& controller, int64_t now_ns) {
  const ControllerConfig& config = controller.config();
  if (config.tick || !controller.HasUnflushed()) return;
  const bool due = controller.waiting() || controller.Raised() != 0 || config.size == 1 || controller.HasFullFlush() ||
                   now_ns - controller.UnflushedSinceNs() >= config.cycle_time_ns;
  if (!due) return;
  controller.Flush();
  news_ = true;
}

bool RelayAgreement::HasNews(const Controller& controller, int64_t now_ns) const {
  if (controller.config().tick) return now_ns >= next_tick_ns_;
  if (news_ || (controller.Raised() & kGatherFlags) != 0) return true;
  // The rank still lingers: it first waits for the rest of the submissions.
  if (controller.HasUnflushed()) return false;
  return controller.waiting() && controller.HasPending() && controller.changes() != seen_changes_;
}

void RelayAgreement::Contribute(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  controller.Freeze(&own_bitvector_);
  frozen_flags_ = GatherFlags(own_bitvector_);
  seen_changes_ = controller.changes();
  news_ = false;
  in_ = true;
  if (controller.config().tick) {
    next_tick_ns_ = now_ns + controller.config().TickNs();
    urgent_since_ns_ = now_ns;  // every rank has to answer every tick
  }
  if (!IsRoot() && Shares(channel, parent_)) {
    channel.Publish(controller.round(), own_bitvector_, {});
    controller.CountSent(0, own_bitvector_.size() * sizeof(uint64_t));
    channel.Ring(parent_);
  }
  if (!options_.with_requests || frozen_flags_ == 0) return;
  wire::RequestList list;
  controller.FillRequests(RoundOutcome{.raised = frozen_flags_ & ~uint64_t{kStalled}}, now_ns, &list);
  // Leaves out the stall information: if stalls are inspected, a second pass collects it from all ranks.
  list.all_waiting = false;
  list.last_done.clear();
  list.stalled_bits.clear();
  list.pending_bits.clear();
  requests_.Add(std::move(list));
}

// True if some rank of this subtree needs the coordinator.
bool RelayAgreement::IsUrgent(const Controller& controller) const {
  if ((controller.Raised() & kGatherFlags) != 0 || (in_ && frozen_flags_ != 0)) return true;
  return std::ranges::any_of(children_, [](const Child& child) { return child.in && GatherFlags(child.words) != 0; });
}

// See Note [When a relayed round runs].
void RelayAgreement::AskTheSilent(Controller& controller, ControlChannel& channel) {
  urgent_ |= IsUrgent(controller);
  const bool active = in_ || polled_ || std::ranges::any_of(children_, &Child::in);
  if (urgent_ && !std::exchange(alerted_, true) && !IsRoot()) {
    SendFrame(controller, channel, parent_, NewFrame(controller, RelayFrame::Kind::kAlert));
  }
  for (Child& child : children_) {
    if (child.in) continue;
    if (urgent_) {
      if (!std::exchange(child.asked_urgently, true)) {
        SendFrame(controller, channel, child.rank, NewFrame(controller, RelayFrame::Kind::kPoll));
      }
    } else if ((polled_ || (active && child.owes)) && !std::exchange(child.asked, true)) {
      SendFrame(controller, channel, child.rank, NewFrame(controller, RelayFrame::Kind::kAskOwing));
    }
  }
}

void RelayAgreement::AndSubtree() {
  and_ = own_bitvector_;
  for (const Child& child : children_) AndInto(child.words, &and_);
}

void RelayAgreement::PassUp(Controller& controller, ControlChannel& channel) {
  AndSubtree();
  if (Shares(channel, parent_)) return;  // already published; a rank that shares its words has no children
  RelayFrame frame = NewFrame(controller, RelayFrame::Kind::kUp);
  frame.words = and_;
  requests_.Take(&frame.requests, &frame.lists);
  SendFrame(controller, channel, parent_, frame);
}

bool RelayAgreement::NeedsLists(const RoundOutcome& outcome) const {
  if (!outcome.gather) return false;
  return !options_.with_requests || outcome.hashes_differ || (outcome.raised & kStalled) != 0;
}

Status RelayAgreement::Decide(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  AndSubtree();
  outcome_ = controller.ApplyAnd(and_);
  and_applied_ = true;
  if (outcome_.gather && !NeedsLists(outcome_)) return Answer(controller, channel, now_ns);
  RelayFrame frame = NewFrame(controller, outcome_.gather ? RelayFrame::Kind::kBitvector : RelayFrame::Kind::kResult);
  frame.words = and_;
  std::string bytes;
  EncodeFrame(frame, &bytes);
  SendDown(controller, channel, bytes);
  if (!outcome_.gather) return EndRound(controller, nullptr);
  BeginLists(controller, now_ns);
  return Status::Ok();
}

void RelayAgreement::BeginLists(Controller& controller, int64_t now_ns) {
  listing_ = true;
  wire::RequestList list;
  controller.FillRequests(outcome_, now_ns, &list);
  requests_.Add(std::move(list));
}

void RelayAgreement::PassListsUp(Controller& controller, ControlChannel& channel) {
  RelayFrame frame = NewFrame(controller, RelayFrame::Kind::kLists);
  requests_.Take(&frame.requests, &frame.lists);
  SendFrame(controller, channel, parent_, frame);
}

Status RelayAgreement::Answer(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  const ControllerConfig& config = controller.config();
  const wire::RequestList nothing{
      .process_set = config.process_set, .epoch = config.epoch, .round = controller.round()};
  std::vector<wire::RequestList> lists;
  std::vector<MergedRequest> merged;
  HC_RETURN_IF_ERROR(requests_.TakeAll(config.size, nothing, &lists, &merged));
  RelayFrame frame = NewFrame(controller, RelayFrame::Kind::kResult);
  HC_RETURN_IF_ERROR(controller.Coordinate(lists, outcome_, now_ns, &frame.responses, merged));
  frame.has_responses = true;
  if (!listing_) frame.words = and_;
  std::string bytes;
  EncodeFrame(frame, &bytes);
  SendDown(controller, channel, bytes);
  return EndRound(controller, &frame.responses);
}

Status RelayAgreement::EndRound(Controller& controller, const wire::ResponseList* responses) {
  const bool answered = responses != nullptr && !(responses->erase.empty() && responses->responses.empty() &&
                                                  responses->joined.empty() && responses->settings.empty());
  const bool moved = outcome_.agreed > 0 || answered;
  // As long as nothing moves, a rank whose threads all wait owes, too: only all ranks together can find that they are
  // stuck.
  const auto owes = [&](const std::vector<uint64_t>& words) {
    return LeavesSome(words, and_) || (!moved && Bitvector(words).all_wait());
  };
  owes_ = owes(own_bitvector_);
  for (Child& child : children_) {
    child.owes = owes(child.words);
    child.in = child.lists_in = child.asked = child.asked_urgently = false;
  }
  if (!moved && outcome_.all_wait && !listing_ && controller.HasPending()) controller.RaiseStalled();
  HC_RETURN_IF_ERROR(controller.Finish(responses));
  // Changes that the round itself made are not news.
  if (moved) seen_changes_ = controller.changes();
  in_ = polled_ = urgent_ = alerted_ = passed_up_ = and_applied_ = listing_ = lists_passed_up_ = false;
  urgent_since_ns_ = -1;
  overdue_reported_ = false;
  frozen_flags_ = 0;
  return Status::Ok();
}

bool RelayAgreement::AllIn() const { return std::ranges::all_of(children_, &Child::in); }

// ---- time

// The ranks that hold the round up, if the channel knows them; otherwise the ranks that this rank itself waits for: its
// children or, if all of them have answered, its parent.
std::vector<int32_t> RelayAgreement::Missing(const ControlChannel& channel, int64_t now_ns) const {
  std::vector<int32_t> missing = channel.NotRunning(now_ns, (now_ns - urgent_since_ns_) / 2);
  if (!missing.empty()) return missing;
  for (const Child& child : children_) {
    if (listing_ ? !child.lists_in : !child.in) missing.push_back(child.rank);
  }
  if (missing.empty() && !IsRoot()) missing.push_back(parent_);
  return missing;
}

Status RelayAgreement::CheckOverdue(Controller& controller, const ControlChannel& channel, int64_t now_ns) {
  return control::CheckOverdue(
      controller, urgent_since_ns_, [&] { return Missing(channel, now_ns); },
      "stopped, without processor time, or waiting for others that are", now_ns, &overdue_reported_);
}

int64_t RelayAgreement::ComputeWake(const Controller& controller) const {
  const ControllerConfig& config = controller.config();
  int64_t wake_ns = controller.NextInspectNs();
  if (controller.closed()) return kNever;
  if (config.tick) {
    if (!in_) wake_ns = std::min(wake_ns, next_tick_ns_);
  } else if (controller.HasUnflushed()) {
    wake_ns = std::min(wake_ns, controller.UnflushedSinceNs() + config.cycle_time_ns);
  }
  if (config.stall_check && urgent_since_ns_ >= 0) {
    wake_ns = std::min(wake_ns, OverdueSince(controller, urgent_since_ns_).NextNs(overdue_reported_));
  }
  return wake_ns;
}

}  // namespace horocache::control
