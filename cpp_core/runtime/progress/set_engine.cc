#include "runtime/progress/set_engine.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "control/signature.h"
#include "runtime/diagnostics/timeline_record.h"

namespace horocache::runtime {
namespace {

// How long an operation of an aborted set may make no progress before the set ends.
constexpr int64_t kAbortGraceNs = kNsPerS;

}  // namespace

SetEngine::SetEngine(SetParts parts, const SetContext& context)
    : config_(std::move(parts.config)),
      names_(config_.process_set, config_.ranks),
      controller_(std::move(parts.controller)),
      agreement_(std::move(parts.agreement)),
      channel_(std::move(parts.channel)),
      main_lanes_(parts.backends.size()),
      backends_(AllBackends(&parts)),
      table_(context.table),
      metrics_(context.metrics),
      logger_(context.logger),
      timeline_(context.timeline),
      on_stack_request_(context.on_stack_request),
      on_operation_abandoned_(context.on_operation_abandoned),
      on_end_(context.on_end),
      on_settings_(context.on_settings),
      small_lanes_(config_.small_lane_bytes),
      held_back_(config_.small_lane_bytes),
      inline_lane_(parts.kernels, config_.rank, static_cast<int>(config_.ranks.size()), &names_, context.table,
                   context.metrics, context.faults, context.timeline) {
  late_.reserve(2 * config_.ranks.size());
  const auto takes_cpu = [](const auto& backend) {
    return (backend->traits().device_classes >> static_cast<int>(wire::DeviceClass::kCpu) & 1u) != 0;
  };
  host_lane_ = static_cast<size_t>(std::ranges::find_if(backends_, takes_cpu) - backends_.begin());
  for (const auto& backend : backends_) {
    lanes_.emplace_back(backend.get(), config_.rank, &names_, context.table, context.metrics, context.faults,
                        context.timeline);
  }
  for (size_t lane = main_lanes_; lane < backends_.size(); ++lane) {
    const auto main = std::ranges::find_if(
        backends_, [&](const auto& backend) { return backend->traits().name == backends_[lane]->traits().name; });
    small_lanes_.Add(static_cast<size_t>(main - backends_.begin()), lane);
  }
}

std::vector<std::unique_ptr<data::Backend>> SetEngine::AllBackends(SetParts* parts) {
  std::vector<std::unique_ptr<data::Backend>> all = std::move(parts->backends);
  for (auto& backend : parts->small_backends) all.push_back(std::move(backend));
  return all;
}

bool SetEngine::Has(int world_rank) const {
  return std::ranges::find(config_.ranks, world_rank) != config_.ranks.end();
}

// ---- orders

// See Note [Operations that are held back] in held_back.h.
void SetEngine::Submit(Operation* operation, int64_t now_ns) {
  if (held_back_.Concerns(*operation) && end_reason_.ok() && controller_->open()) {
    held_back_.Add(operation, now_ns);
    if (!ProposeHeld(now_ns, operation)) metrics_->held_back.Add(1);
    return;
  }
  if (operation->request.signature.op != wire::Op::kAllreduce) ProposeAll(now_ns);
  SubmitToController(operation, now_ns);
}

bool SetEngine::ProposeHeld(int64_t now_ns, const Operation* wanted) {
  const bool backlog = HasBacklog();
  bool proposed = false;
  while (!held_back_.empty() && held_back_.MayPropose(backlog, now_ns)) {
    Operation* const operation = held_back_.Take();
    proposed |= operation == wanted;
    held_back_.NoteProposed(operation, now_ns);
    SubmitToController(operation, now_ns);
  }
  return proposed;
}

void SetEngine::ProposeAll(int64_t now_ns) {
  while (!held_back_.empty()) SubmitToController(held_back_.Take(), now_ns);
}

bool SetEngine::HasBacklog() const {
  const auto main_lanes = std::span(lanes_).first(main_lanes_);
  return std::ranges::any_of(main_lanes, [](const Lane& lane) { return lane.has_backlog(); });
}

void SetEngine::SubmitToController(Operation* operation, int64_t now_ns) {
  const uint64_t op = OperationTable::IdOf(operation);
  const int64_t since_ns = std::min(operation->submitted_ns, now_ns);  // submitted_ns may be later than this pass
  InlineData data;
  const std::span<const std::byte> copied = CopyInlineData(*operation, &data);
  control::KnownEntry* const known = operation->prepared.home == nullptr ? nullptr : &operation->prepared.entry;
  if (const Status status = controller_->Submit(op, operation->request, since_ns, copied, known); !status.ok()) {
    FailOperation(op, status);
  }
}

void SetEngine::Leave(int64_t now_ns) {
  ProposeAll(now_ns);
  if (left_ns_ == 0) left_ns_ = now_ns;
  if (end_reason_.ok()) controller_->Leave();
}

void SetEngine::Abort(const std::string& why) {
  ProposeAll(NowNs());
  aborts_ = true;
  controller_->Abort(why);
}

void SetEngine::StopDevices(const Status& why) {
  const bool aborted = !end().ok() && end().code() != StatusCode::kShutDown;
  const bool in_order = why.code() == StatusCode::kShutDown && !LanesBusy() && !aborted;
  if (!end_reason_.ok() || in_order || std::exchange(stopped_, true)) return;
  // Operations for which the lost rank has done its part have all their data in memory, and can still succeed.
  for (Lane& lane : lanes_) {
    while (lane.Step()) {
    }
  }
  AbandonDevices(why);
}

void SetEngine::AbandonDevices(const Status& why) {
  for (const auto& backend : backends_) backend->Abandon(why);
}

std::string SetEngine::AwaitDevices() {
  std::string errors;
  for (const auto& backend : backends_) {
    if (const Status status = backend->AwaitDevices(); !status.ok()) errors += " " + Sentence(status.message());
  }
  return errors;
}

void SetEngine::EndWith(const Status& why) {
  if (!end_reason_.ok()) return;
  StopDevices(why);
  end_reason_ = why;
  if (on_end_) on_end_(why);
  ProposeAll(NowNs());
  if (why.code() == StatusCode::kShutDown) {
    channel_->SayGoodbye(aborts_ || end().code() == StatusCode::kAborted);
  } else {
    channel_->NotifyLost(why);
  }
  controller_->EndWith(why);
  FailLanes();
}

void SetEngine::GiveUp(const Status& why) {
  if (std::exchange(end_reason_, why).ok()) channel_->NotifyLost({StatusCode::kAborted, why.message()});
}

// ---- driving

SetEngine::Progress SetEngine::Step(int64_t now_ns, bool stuck) {
  Progress progress;
  controller_->SetWaiting(waiting_, stuck && held_back_.empty());
  progress.moved = channel_->Progress();
  if (!channel_->broken().ok()) EndWith(channel_->broken());
  if (controller_->closed() || held_back_.IsOverdue(now_ns)) {
    ProposeAll(now_ns);
  } else if (!held_back_.empty()) {
    ProposeHeld(now_ns);
  }
  if (end_reason_.ok()) {
    const StatusOr<bool> stepped = agreement_->Step(*controller_, *channel_, now_ns);
    if (!stepped.ok()) EndWith(stepped.status());
    progress.moved |= !stepped.ok() || stepped.value();
  }
  if (timeline_->marks_rounds()) MarkRound(now_ns);
  progress.planned = HandOut();
  for (Lane& lane : lanes_) {
    if (!lane.Step()) continue;
    progress.moved = true;
    controller_->SetLastDone(lane.last_done());
    if (Status fault = lane.TakeFault(); !fault.ok()) fault_ = std::move(fault);
  }
  return progress;
}

bool SetEngine::HandOut() {
  bool planned = false;
  while (controller_->NextPlan(&plan_)) {
    planned = true;
    plan_.agreed_ns = timeline_->on() ? NowNs() : 0;
    for (const control::PlanItem& item : plan_.items) {
      if (item.op != control::kNoOp && item.last_piece) held_back_.NoteSettled(OperationTable::FromId(item.op));
    }
    if (plan_.is_inline()) {
      RunInline();
      continue;
    }
    lanes_[LaneOfPlan()].Enqueue(&plan_);
  }
  if (!end_reason_.ok()) FailLanes();  // plans agreed on before the end cannot run any more
  // Logged before the failures are delivered: after that, the program logs them, too, and lines could be interleaved.
  std::string report;
  while (controller_->NextReport(&report)) logger_->Warning(report);
  for (control::Settings settings; controller_->NextSettings(&settings);) {
    if (on_settings_) on_settings_(settings);
  }
  control::Failure failure;
  while (controller_->NextFailure(&failure)) FailOperation(failure.op, failure.status);
  if (controller_->TakeStackRequest() && on_stack_request_) on_stack_request_(config_.process_set);
  return planned;
}

size_t SetEngine::LaneOfPlan() {
  if (!wire::TraitsOf(plan_.op).on_backends) return host_lane_;  // a join, behind the operations of the host
  const size_t main = std::min<size_t>(plan_.choice.backend, main_lanes_ - 1);
  const size_t lane = small_lanes_.Next(main, plan_);
  if (lane != main) metrics_->small_lane_operations.Add(1);
  return lane;
}

void SetEngine::RunInline() {
  inline_lane_.Run(plan_);
  controller_->SetLastDone(plan_.items[0].signature->name);
  if (Status fault = inline_lane_.TakeFault(); !fault.ok()) fault_ = std::move(fault);
}

Status SetEngine::TakeFault() { return fault_.ok() ? Status::Ok() : std::exchange(fault_, Status::Ok()); }

void SetEngine::FailOperation(uint64_t op, const Status& status) {
  Operation* operation = OperationTable::FromId(op);
  held_back_.NoteSettled(operation);
  const wire::Signature& signature = operation->request.signature;
  const bool names_it = status.message().find(Printable(signature.name)) != std::string::npos;
  if (timeline_->on()) timeline_->Add(TraceOf(*operation, status, NowNs()));
  table_->Finish(operation,
                 names_it ? status
                          : Status(status.code(), Sentence(status.message()) + " " + control::Describe(signature) +
                                                      " was pending on " + OwnRank() + "."));
}

void SetEngine::MarkRound(int64_t now_ns) {
  const uint64_t rounds = counters().rounds;
  if (rounds == std::exchange(marked_rounds_, rounds)) return;
  timeline_->MarkRound(config_.process_set, rounds, now_ns);
}

void SetEngine::FailLanes() {
  if (!LanesBusy()) return;
  const std::string given_up = AwaitDevices();
  for (Lane& lane : lanes_) {
    if (lane.idle()) continue;
    if (on_operation_abandoned_) on_operation_abandoned_();
    const Operation* running = lane.Running();
    const std::string where =
        running == nullptr ? ""
                           : " " + control::Describe(running->request.signature) + " was running on " + OwnRank() + ".";
    lane.Fail({end_reason_.code(), end_reason_.message() + where + given_up}, !given_up.empty());
  }
}

// Ends an aborted set whose operations make no progress. The aborting rank does its part of the agreed operations if
// it can; if it cannot, they would never end.
void SetEngine::EndAborted(int64_t now_ns) {
  const auto stuck = [now_ns](const Lane& lane) {
    return !lane.idle() && now_ns - lane.StillSinceNs() > kAbortGraceNs;
  };
  if (end().code() == StatusCode::kAborted && std::ranges::any_of(lanes_, stuck)) EndWith(end());
}

void SetEngine::CheckOverdue(int64_t now_ns) {
  EndAborted(now_ns);
  CheckDeparted();
  if (!config_.stall_check) return;
  CheckLeaving(now_ns);
  for (const Lane& lane : lanes_) {
    const Operation* running = lane.Running();
    const int64_t waited_ns = now_ns - lane.StillSinceNs();
    if (running == nullptr || waited_ns < config_.stall_warn_ns || lane.StillSinceNs() == 0) continue;
    std::vector<int> late = channel_->NotRunning(now_ns, waited_ns / 2);
    if (late.empty()) lane.AddWaitingFor(&late);
    Overdue(control::Describe(running->request.signature) + names_.OfSet() + " has made no progress for " +
                SecondsText(waited_ns / kNsPerMs * kNsPerMs) + " on " + OwnRank() +
                (lane.awaits_tensors() ? " and waits for its tensors."
                                       : " and waits for " + (late.empty() ? "other ranks" : names_.Text(late)) +
                                             ", which did not answer (stopped, or without processor time?).") +
                lane.Details(),
            waited_ns, now_ns);
    if (!end_reason_.ok()) return;
  }
}

void SetEngine::Overdue(const std::string& text, int64_t waited_ns, int64_t now_ns) {
  if (config_.stall_fail_ns > 0 && waited_ns >= config_.stall_fail_ns) {
    EndWith({StatusCode::kStall, text + " Gave up after HOROCACHE_STALL_SHUTDOWN_TIME_SECONDS."});
  } else if (now_ns - warned_ns_ >= config_.stall_warn_ns) {
    warned_ns_ = now_ns;
    logger_->Warning(text);
  }
}

// Ends the set if a member has left it alone. Members that leave together close their rounds first, which ends this
// check. A rank's last messages arrive before its departure is visible, so the departure counts when it is seen for the
// second time, after another step.
void SetEngine::CheckDeparted() {
  if (config_.process_set == 0 || left_ns_ > 0 || !end_reason_.ok() || controller_->closed()) return;
  const int rank = channel_->Departed();
  if (rank < 0 || !std::exchange(saw_departed_, true)) return;
  EndWith({StatusCode::kShutDown,
           names_.Text(rank) + " has left process set " + std::to_string(config_.process_set) + "."});
}

void SetEngine::CheckLeaving(int64_t now_ns) {
  const int64_t waited_ns = now_ns - left_ns_;
  if (left_ns_ == 0 || waited_ns < config_.stall_warn_ns || Ended() || LanesBusy()) return;
  std::vector<int> absent = channel_->NotRunning(now_ns, waited_ns / 2);
  const bool known = !absent.empty();
  for (int rank = 0; rank < channel_->size() && !known; ++rank) {
    if (channel_->SharesBitvector(rank) && !channel_->HasPublished(rank, controller_->round())) absent.push_back(rank);
  }
  const std::string who = absent.empty() ? "a rank of another host" : names_.Text(absent);
  Overdue(who + " has not left process set " + std::to_string(config_.process_set) + " " +
              SecondsText(waited_ns / kNsPerMs * kNsPerMs) + " after " + OwnRank() +
              " did (stopped, or without processor time?).",
          waited_ns, now_ns);
}

// ---- state, for the progress engine

bool SetEngine::LanesBusy() const {
  return std::ranges::any_of(lanes_, [](const Lane& lane) { return !lane.idle(); });
}

bool SetEngine::lanes_must_poll() const {
  return std::ranges::any_of(lanes_, [](const Lane& lane) { return lane.must_poll(); });
}

bool SetEngine::broken() const {
  return std::ranges::any_of(backends_, [](const auto& backend) { return !backend->broken().ok(); });
}

int64_t SetEngine::NextWakeNs() const {
  if (!end_reason_.ok()) return kNever;
  const int64_t held_ns = held_back_.empty() ? kNever : held_back_.NextNs(HasBacklog());
  return std::min(held_ns, agreement_->NextWakeNs());
}

void SetEngine::Blame(std::vector<int>* blamed) {
  const auto add = [&](int rank) {
    const int world_rank = names_.Of(rank);
    if (std::ranges::find(*blamed, world_rank) == blamed->end()) blamed->push_back(world_rank);
  };
  late_.clear();
  for (const Lane& lane : lanes_) lane.AddWaitingFor(&late_);
  for (const int rank : late_) add(rank);
  if (LanesBusy() || !waiting_ || !controller_->HasPending()) return;
  if (!channel_->HasPublished(config_.rank, controller_->round())) return;
  for (int rank = 0; rank < channel_->size(); ++rank) {
    if (channel_->SharesBitvector(rank) && !channel_->HasPublished(rank, controller_->round())) add(rank);
  }
}

void SetEngine::AddDataCounters(data::DataCounters* sum) const {
  for (const auto& backend : backends_) {
    sum->operations += backend->counters().operations;
    sum->payload_bytes += backend->counters().payload_bytes;
    sum->bytes_copied += backend->counters().bytes_copied;
    sum->bytes_folded += backend->counters().bytes_folded;
    sum->programs += backend->counters().programs;
  }
  sum->operations += inline_lane_.counters().operations;
  sum->payload_bytes += inline_lane_.counters().payload_bytes;
  sum->bytes_copied += inline_lane_.counters().bytes_copied;
  sum->bytes_folded += inline_lane_.counters().bytes_folded;
}

}  // namespace horocache::runtime
