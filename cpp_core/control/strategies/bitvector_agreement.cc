#include "control/strategies/bitvector_agreement.h"

#include <algorithm>

#include "base/duration.h"
#include "control/bitvector.h"
#include "control/strategies/deadline.h"
#include "control/strategies/strategies.h"
#include "wire/codec.h"

namespace horocache::control {
namespace {

// The first and the longest pause, in ns, between two checks of a rank that has something pending.
constexpr int64_t kShortestPauseNs = 1'000'000;
constexpr int64_t kLongestPauseNs = 100'000'000;

bool SomeonePublished(const Controller& controller, ControlChannel& channel) {
  for (int rank = 0; rank < channel.size(); ++rank) {
    if (rank != channel.rank() && channel.HasPublished(rank, controller.round())) return true;
  }
  return false;
}

std::vector<int32_t> Unpublished(const Controller& controller, ControlChannel& channel) {
  std::vector<int32_t> ranks;
  for (int rank = 0; rank < channel.size(); ++rank) {
    if (!channel.HasPublished(rank, controller.round())) ranks.push_back(rank);
  }
  return ranks;
}

std::span<const std::byte> Bytes(const std::string& frame) { return std::as_bytes(std::span(frame)); }

Status FrameError(int from, const Controller& controller, const Status& why) {
  return {why.code(), "from " + controller.config().names.Text(from) + " in round " +
                          std::to_string(controller.round()) + ": " + why.message()};
}

}  // namespace

StatusOr<bool> BitvectorAgreement::Step(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  const bool progressed = channel.Progress();
  if (!started_) {
    started_ = true;
    all_snapshots_readable_ = true;
    for (int rank = 0; rank < channel.size(); ++rank) all_snapshots_readable_ &= channel.SharesBitvector(rank);
    ResetPause(now_ns);
  }
  if (controller.closed()) {
    wake_ns_ = progressed ? now_ns + kShortestPauseNs : kNever;
    return progressed;
  }
  controller.Inspect(now_ns);
  const StatusOr<bool> moved = StepState(controller, channel, now_ns);
  if (!moved.ok()) {
    wake_ns_ = kNever;
    return moved.status();
  }
  if (*moved) ResetPause(now_ns);
  wake_ns_ = ComputeWake(controller);
  return *moved || progressed || (flushes_next_ && MayFlush());
}

StatusOr<bool> BitvectorAgreement::StepState(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  switch (state_) {
    case State::kOpen:
      return StepOpen(controller, channel, now_ns);
    case State::kPublished:
      return StepPublished(controller, channel, now_ns);
    case State::kGathering:
      return StepGathering(controller, channel, now_ns);
    case State::kAwaiting:
      return StepAwaiting(controller, channel, now_ns);
  }
  return Status(StatusCode::kInternal, "the agreement is in no state.");
}

// ---- kOpen

bool BitvectorAgreement::MustPropose(const Controller& controller) const {
  if ((controller.Raised() & kGatherFlags) != 0 || Bitvector(hint_and_).any_cache_bit()) return true;
  // A waiting rank publishes early, so that its bitvector is there when the last rank comes. It does so once for each
  // change, because an empty round must not cause the next one.
  return controller.waiting() && controller.HasHitsPending() && controller.changes() != published_changes_;
}

StatusOr<bool> BitvectorAgreement::StepOpen(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  if (controller.config().tick) {
    if (now_ns < next_tick_ns_) return false;
    next_tick_ns_ = now_ns + controller.config().TickNs();
  } else {
    PauseIsOver(now_ns);
    Observe(controller, channel, now_ns);
    if (flushes_next_) return false;  // the flush comes before any proposal
    const bool called = OthersGather() && SomeonePublished(controller, channel);
    if (!called && !MustPropose(controller)) return false;
  }
  Publish(controller, channel, now_ns);
  const StatusOr<bool> moved = StepPublished(controller, channel, now_ns);
  if (!moved.ok()) return moved.status();
  return true;
}

void BitvectorAgreement::Publish(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  const bool tick = controller.config().tick;
  controller.Freeze(&words_);
  if (all_snapshots_readable_) controller.WritePayload(&payload_);
  flushed_ns_ = now_ns;
  if (!tick) {
    // Before the snapshot, so that a rank that sees the snapshot also sees the reason for it.
    RefreshHint(controller, channel, false);
    channel.AndHints(&hint_and_);
  }
  channel.Publish(controller.round(), words_, payload_);
  controller.CountSent(0, (words_.size() + payload_.size()) * sizeof(uint64_t));
  published_changes_ = controller.changes();
  state_ = State::kPublished;
  just_published_ = true;
  overdue_reported_ = false;
  demanded_since_ns_ = tick ? now_ns : -1;
  ResetPause(now_ns);
  if (tick) return;
  const uint64_t flags = Bitvector(hint_and_).raised();
  const bool all_have_to = (controller.Raised() & kGatherFlags) != 0 || Bitvector(hint_and_).any_cache_bit();
  const bool end_lingering = controller.waiting() && (flags & kLingering) != 0;
  if (all_have_to || end_lingering) RingUnpublished(controller, channel);
}

void BitvectorAgreement::RingUnpublished(const Controller& controller, ControlChannel& channel) {
  for (int rank = 0; rank < channel.size(); ++rank) {
    if (!channel.HasPublished(rank, controller.round())) channel.Ring(rank);
  }
}

void BitvectorAgreement::RingOthers(ControlChannel& channel) {
  for (int rank = 0; rank < channel.size(); ++rank) {
    if (rank != channel.rank()) channel.Ring(rank);
  }
}

// ---- kPublished

StatusOr<bool> BitvectorAgreement::StepPublished(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  const bool fresh = just_published_;
  just_published_ = false;
  if (!channel.AndSnapshots(controller.round(), &words_)) {
    HC_RETURN_IF_ERROR(AwaitOthers(controller, channel, fresh, now_ns));
    return false;
  }
  const StatusOr<std::span<const Snapshot>> snapshots = ReadSnapshots(controller, channel);
  if (!snapshots.ok()) return snapshots.status();
  outcome_ = controller.ApplyAnd(words_, *snapshots);
  // A rank that finds the round complete as soon as it has published is the last one: the others sleep.
  if (fresh && (outcome_.agreed > 0 || outcome_.gather)) RingOthers(channel);
  if (outcome_.gather) return StartGather(controller, channel, outcome_, now_ns);
  if (outcome_.agreed == 0 && outcome_.all_wait && controller.HasPending()) controller.RaiseStalled();
  HC_RETURN_IF_ERROR(EndRound(controller, channel, nullptr));
  return true;
}

StatusOr<std::span<const Snapshot>> BitvectorAgreement::ReadSnapshots(const Controller& controller,
                                                                      ControlChannel& channel) {
  if (!all_snapshots_readable_ || !controller.MayRunInline(words_)) return std::span<const Snapshot>();
  snapshots_.resize(static_cast<size_t>(channel.size()));
  for (int rank = 0; rank < channel.size(); ++rank) {
    Snapshot& snapshot = snapshots_[static_cast<size_t>(rank)];
    if (channel.ReadPublished(rank, controller.round(), &snapshot.words, &snapshot.payload)) continue;
    return Status(StatusCode::kInternal, "the snapshot of " + controller.config().names.Text(rank) +
                                             " is gone before round " + std::to_string(controller.round()) +
                                             " has ended.");
  }
  return std::span<const Snapshot>(snapshots_);
}

template <typename F>
Status BitvectorAgreement::CheckOverdue(Controller& controller, F&& missing, int64_t now_ns) {
  return control::CheckOverdue(controller, demanded_since_ns_, missing, "stopped, or without processor time", now_ns,
                               &overdue_reported_);
}

Status BitvectorAgreement::AwaitOthers(Controller& controller, ControlChannel& channel, bool fresh, int64_t now_ns) {
  bool shown = false;
  if (!controller.config().tick) {
    shown = Observe(controller, channel, now_ns);
    const bool demanded = OthersGather() || Bitvector(hint_and_).any_cache_bit();
    if (!demanded) demanded_since_ns_ = -1;  // a rank with nothing pending need not answer
    if (demanded && demanded_since_ns_ < 0) demanded_since_ns_ = now_ns;
  }
  const bool again = PauseIsOver(now_ns);
  if (demanded_since_ns_ < 0) return Status::Ok();
  if (!fresh && (shown || again)) RingUnpublished(controller, channel);
  return CheckOverdue(controller, [&] { return Unpublished(controller, channel); }, now_ns);
}

Status BitvectorAgreement::EndRound(Controller& controller, ControlChannel& channel,
                                    const wire::ResponseList* responses) {
  HC_RETURN_IF_ERROR(controller.Finish(responses));
  state_ = State::kOpen;
  flushes_next_ = false;
  demanded_since_ns_ = -1;
  if (!controller.config().tick) RefreshHint(controller, channel, Lingers(controller));
  return Status::Ok();
}

// ---- kGathering, kAwaiting: the paper's MasterWorkerCoordination

StatusOr<bool> BitvectorAgreement::StartGather(Controller& controller, ControlChannel& channel,
                                               const RoundOutcome& outcome, int64_t now_ns) {
  // The agreed hits of this round are already planned: the new hint leaves them out, so they are not proposed again.
  if (!controller.config().tick) RefreshHint(controller, channel, Lingers(controller));
  demanded_since_ns_ = now_ns;
  overdue_reported_ = false;
  wire::RequestList list;
  controller.FillRequests(outcome, now_ns, &list);
  if (channel.rank() == 0) {
    lists_.clear();
    lists_.push_back(std::move(list));
    state_ = State::kGathering;
    return true;  // the caller hands out the agreed hits before it steps again
  }
  frame_.clear();
  wire::Encode(list, &frame_);
  channel.Send(0, frame_);
  controller.CountSent(1, frame_.size());
  channel.Progress();
  channel.Ring(0);
  state_ = State::kAwaiting;
  return true;
}

StatusOr<bool> BitvectorAgreement::StepGathering(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  bool moved = false;
  int from = -1;
  while (lists_.size() < static_cast<size_t>(channel.size()) && channel.Receive(&from, &frame_)) {
    StatusOr<wire::RequestList> list = wire::DecodeRequestList(Bytes(frame_));
    if (!list.ok()) return FrameError(from, controller, list.status());
    const StatusOr<bool> ours = controller.Accept(*list, from);
    if (!ours.ok()) return ours.status();
    if (*ours) lists_.push_back(std::move(*list));
    moved = true;
  }
  if (lists_.size() == static_cast<size_t>(channel.size())) return Answer(controller, channel, now_ns);
  const auto missing = [&] {
    std::vector<int32_t> ranks;
    for (int rank = 0; rank < channel.size(); ++rank) {
      const auto is_of = [rank](const wire::RequestList& list) { return list.rank == rank; };
      if (std::ranges::none_of(lists_, is_of)) ranks.push_back(rank);
    }
    return ranks;
  };
  if (Status overdue = CheckOverdue(controller, missing, now_ns); !overdue.ok()) {
    // The other ranks wait for rank 0's answer and cannot see which ranks are missing.
    wire::ResponseList failure;
    failure.process_set = controller.config().process_set;
    failure.epoch = controller.config().epoch;
    failure.round = controller.round();
    failure.fatal = overdue.code();
    failure.report = overdue.message();
    SendToAll(controller, channel, failure);
    return overdue;
  }
  if (PauseIsOver(now_ns)) {
    for (const int32_t rank : missing()) channel.Ring(rank);
  }
  return moved;
}

void BitvectorAgreement::SendToAll(Controller& controller, ControlChannel& channel,
                                   const wire::ResponseList& responses) {
  frame_.clear();
  wire::Encode(responses, &frame_);
  for (int rank = 1; rank < channel.size(); ++rank) channel.Send(rank, frame_);
  controller.CountSent(channel.size() - 1, frame_.size() * static_cast<size_t>(channel.size() - 1));
  channel.Progress();
  RingOthers(channel);
}

StatusOr<bool> BitvectorAgreement::Answer(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  wire::ResponseList responses;
  HC_RETURN_IF_ERROR(controller.Coordinate(lists_, outcome_, now_ns, &responses));
  lists_.clear();
  SendToAll(controller, channel, responses);
  HC_RETURN_IF_ERROR(EndRound(controller, channel, &responses));
  return true;
}

StatusOr<bool> BitvectorAgreement::StepAwaiting(Controller& controller, ControlChannel& channel, int64_t now_ns) {
  int from = -1;
  while (channel.Receive(&from, &frame_)) {
    const StatusOr<wire::ResponseList> responses = wire::DecodeResponseList(Bytes(frame_));
    if (!responses.ok()) return FrameError(from, controller, responses.status());
    const StatusOr<bool> ours = controller.Accept(*responses);
    if (!ours.ok()) return ours.status();
    if (!*ours) continue;
    HC_RETURN_IF_ERROR(EndRound(controller, channel, &*responses));
    return true;
  }
  // Rank 0 may itself wait for another rank. It gets half a limit more, so that its failure, which names that rank,
  // comes first.
  const int64_t patient_ns = now_ns - controller.config().stall_warn_ns / 2;
  HC_RETURN_IF_ERROR(CheckOverdue(controller, [] { return std::vector<int32_t>{0}; }, patient_ns));
  if (PauseIsOver(now_ns)) channel.Ring(0);
  return false;
}

// ---- time

void BitvectorAgreement::ResetPause(int64_t now_ns) {
  pause_ns_ = kShortestPauseNs;
  pause_until_ns_ = now_ns + pause_ns_;
}

bool BitvectorAgreement::PauseIsOver(int64_t now_ns) {
  if (now_ns < pause_until_ns_) return false;
  pause_ns_ = std::min(2 * pause_ns_, kLongestPauseNs);
  pause_until_ns_ = now_ns + pause_ns_;
  return true;
}

int64_t BitvectorAgreement::ComputeWake(const Controller& controller) const {
  const ControllerConfig& config = controller.config();
  int64_t wake_ns = controller.NextInspectNs();
  const auto by = [&](int64_t when_ns) { wake_ns = std::min(wake_ns, when_ns); };
  if (config.tick && state_ == State::kOpen) {
    by(next_tick_ns_);
    return wake_ns;
  }
  if (!config.tick && MayFlush() && controller.HasUnflushed()) by(FlushNs(controller));
  const bool in_round = state_ != State::kOpen && (demanded_since_ns_ >= 0 || config.tick);
  if (in_round || controller.HasPending()) by(pause_until_ns_);
  return wake_ns;
}

std::unique_ptr<Agreement> MakeBitsAgreement(const AgreementConfig&) { return std::make_unique<BitvectorAgreement>(); }

}  // namespace horocache::control
