#include "runtime/coordinator_loop.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "control/rank_set.h"
#include "control/signature.h"

namespace horocache::runtime {
namespace {

using net::Doorbell;

// How long all must have waited before a deadlock counts as certain.
constexpr int64_t kStuckNs = 200 * kNsPerMs;

void Nap() {
  const timespec nap{0, 100 * kNsPerUs};
  nanosleep(&nap, nullptr);
}

}  // namespace

CoordinatorLoop::CoordinatorLoop(const LoopConfig& config, Parts parts, OperationTable* table, Metrics* metrics,
                                 const Logger* logger)
    : config_(config),
      controller_(std::move(parts.controller)),
      agreement_(std::move(parts.agreement)),
      channel_(std::move(parts.channel)),
      backends_(std::move(parts.backends)),
      faults_(std::move(parts.faults)),
      doorbell_(parts.doorbell),
      table_(table),
      metrics_(metrics),
      logger_(logger) {
  for (const auto& backend : backends_) lanes_.emplace_back(backend.get(), config.rank, table, metrics, &faults_);
  thread_ = NamedThread("hc-coordinator", [this] { Run(); });
}

CoordinatorLoop::~CoordinatorLoop() { Stop(); }

void CoordinatorLoop::Stop() {
  Lose({StatusCode::kShutDown, "horocache was shut down on this rank."});
  stop_.store(true);
  doorbell_.Ring();
  thread_.Join();
  // A thread that waits may hold the role: until it has taken the order above, which ends its wait.
  while (!role_.TryTake()) Nap();
  TakeOrders();
  TakeSubmissions(NowNs());
  HandOut();
  role_.Release();
}

// ---- any thread

Status CoordinatorLoop::NoteSubmission(bool wake) {
  const pid_t self = ThisThread();
  if (last_submitter_.load(std::memory_order_relaxed) != self) {
    MutexLock lock(threads_mutex_);
    if (std::ranges::find(submitters_, self) == submitters_.end()) submitters_.push_back(self);
    last_submitter_.store(self, std::memory_order_relaxed);
  }
  if (wake && (!lingers_.load() || waiting_.load() > 0)) doorbell_.Ring();
  return faults_.At("submit");
}

bool CoordinatorLoop::IsStuck(int64_t now_ns) {
  if (waiting_.load() == 0 || LanesBusy()) {
    still_since_ns_ = 0;
    return false;
  }
  if (still_since_ns_ == 0) still_since_ns_ = now_ns;
  return now_ns - still_since_ns_ >= kStuckNs && AllSubmittersWait();
}

bool CoordinatorLoop::AllSubmittersWait() {
  MutexLock lock(threads_mutex_);
  std::erase_if(submitters_, [](pid_t thread) { return !IsAlive(thread); });
  const auto waits = [this](pid_t id) HC_NO_THREAD_SAFETY_ANALYSIS {
    return std::ranges::any_of(waiters_, [id](const Waiter& waiter) {
      return waiter.thread == id && waiter.for_good && !IsDone(*waiter.operation);
    });
  };
  return !submitters_.empty() && std::ranges::all_of(submitters_, waits);
}

void CoordinatorLoop::Lose(const Status& why) {
  {
    MutexLock lock(orders_mutex_);
    if (lose_.ok()) lose_ = why;
  }
  ordered_.store(true);
  doorbell_.Ring();
}

void CoordinatorLoop::Abort(const std::string& why) {
  {
    MutexLock lock(orders_mutex_);
    abort_ = why;
  }
  ordered_.store(true);
  doorbell_.Ring();
}

void CoordinatorLoop::Leave(int64_t deadline_ns) {
  {
    MutexLock lock(orders_mutex_);
    leave_ = true;
  }
  ordered_.store(true);
  doorbell_.Ring();
  const auto ended = [this]() HC_NO_THREAD_SAFETY_ANALYSIS { return Ended(); };
  while (NowNs() < deadline_ns) {
    if (!role_.TryTake()) {
      doorbell_.Ring();
      Nap();
      continue;
    }
    doorbell_.Disarm();
    Drive(Doorbell::kWaiter, deadline_ns, ended);
    const bool done = Ended();
    HandBack();
    if (done) return;
  }
}

// ---- the holder of the role

void CoordinatorLoop::TakeOrders() {
  if (!ordered_.exchange(false)) return;
  Status lose;
  std::string abort;
  bool leave = false;
  {
    MutexLock lock(orders_mutex_);
    lose = lose_;
    abort = std::exchange(abort_, {});
    leave = std::exchange(leave_, false);
  }
  if (!lose.ok() && lost_.ok()) FailEverything(lose);
  if (!abort.empty()) controller_->Abort(abort);
  if (leave && lost_.ok()) controller_->Leave();
}

void CoordinatorLoop::TakeSubmissions(int64_t now_ns) {
  table_->Drain(&drained_);
  if (!drained_.empty()) still_since_ns_ = 0;
  for (Operation* operation : drained_) {
    const Status status = controller_->Submit(OperationTable::IdOf(operation), operation->request, now_ns);
    if (!status.ok()) FailOperation(OperationTable::IdOf(operation), status);
  }
}

bool CoordinatorLoop::Step(int64_t now_ns) {
  TakeOrders();
  TakeSubmissions(now_ns);
  controller_->SetWaiting(waiting_.load() > 0, IsStuck(now_ns));
  bool moved = channel_->Progress();
  if (lost_.ok() && !channel_->broken().ok()) FailEverything(channel_->broken());
  if (lost_.ok()) {
    const StatusOr<bool> stepped = agreement_->Step(*controller_, *channel_, now_ns);
    if (!stepped.ok()) FailEverything(stepped.status());
    moved |= !stepped.ok() || stepped.value();
  }
  HandOut();
  for (Lane& lane : lanes_) {
    if (!lane.Step()) continue;
    moved = true;
    controller_->SetLastDone(lane.last_done());
    if (const Status fault = lane.TakeFault(); !fault.ok()) controller_->Abort(fault.message());
  }
  if (moved) PublishMetrics();
  return moved;
}

void CoordinatorLoop::HandOut() {
  while (controller_->NextPlan(&plan_)) {
    still_since_ns_ = 0;
    const size_t backend = plan_.choice.backend;
    lanes_.at(std::min(backend, lanes_.size() - 1)).Enqueue(&plan_);
  }
  if (!lost_.ok()) FailLanes();  // what was agreed before the loss cannot run any more
  control::Failure failure;
  while (controller_->NextFailure(&failure)) FailOperation(failure.op, failure.status);
  std::string report;
  while (controller_->NextReport(&report)) logger_->Warning(report);
}

void CoordinatorLoop::FailOperation(uint64_t op, const Status& status) {
  Operation* operation = OperationTable::FromId(op);
  const bool names_it = status.message().find(Printable(operation->request.signature.name)) != std::string::npos;
  table_->Finish(operation, names_it ? status
                                     : Status(status.code(),
                                              status.message() + " " + control::Describe(operation->request.signature) +
                                                  " was pending on rank " + std::to_string(config_.rank) + "."));
}

void CoordinatorLoop::FailEverything(const Status& why) {
  // What the lost rank had done its part of is all in memory and can still end well.
  for (Lane& lane : lanes_) {
    while (lane.Step()) {
    }
  }
  lost_ = why;
  controller_->Lose(why);
  FailLanes();
}

void CoordinatorLoop::FailLanes() {
  for (Lane& lane : lanes_) {
    if (lane.idle()) continue;
    const Operation* running = lane.Running();
    const std::string where = running == nullptr ? ""
                                                 : " " + control::Describe(running->request.signature) +
                                                       " was running on rank " + std::to_string(config_.rank) + ".";
    lane.Fail({lost_.code(), lost_.message() + where});
  }
}

bool CoordinatorLoop::LanesBusy() const {
  return std::ranges::any_of(lanes_, [](const Lane& lane) { return !lane.idle(); });
}

bool CoordinatorLoop::Ended() const { return (controller_->closed() || !lost_.ok()) && !LanesBusy(); }

void CoordinatorLoop::CheckLanes(int64_t now_ns) {
  if (!config_.stall_check) return;
  for (const Lane& lane : lanes_) {
    const Operation* running = lane.Running();
    const int64_t waited_ns = now_ns - lane.StillSinceNs();
    if (running == nullptr || waited_ns < config_.stall_warn_ns || lane.StillSinceNs() == 0) continue;
    const std::string text = control::Describe(running->request.signature) + " has made no progress for " +
                             SecondsText(waited_ns / kNsPerMs * kNsPerMs) + " on rank " + std::to_string(config_.rank) +
                             " and waits for " + control::RankText(lane.WaitingFor()) +
                             ", which did not answer (stopped, or without processor time?).";
    if (config_.stall_fail_ns > 0 && waited_ns >= config_.stall_fail_ns) {
      FailEverything({StatusCode::kStall, text + " Gave up after HOROCACHE_STALL_SHUTDOWN_TIME_SECONDS."});
      return;
    }
    if (now_ns - lanes_warned_ns_ >= config_.stall_warn_ns) {
      lanes_warned_ns_ = now_ns;
      logger_->Warning(text);
    }
  }
}

void CoordinatorLoop::PublishMetrics() {
  const control::ControllerCounters& counters = controller_->counters();
  metrics_->rounds.Set(counters.rounds);
  metrics_->slow_rounds.Set(counters.slow_rounds);
  metrics_->flushes.Set(counters.flushes);
  metrics_->hits.Set(counters.hits);
  metrics_->misses.Set(counters.misses);
  metrics_->changed.Set(counters.changed);
  metrics_->evictions.Set(counters.evictions);
  metrics_->growths.Set(counters.growths);
  metrics_->control_bytes.Set(counters.control_bytes);
  metrics_->frames.Set(counters.frames);
  data::DataCounters sum;
  for (const auto& backend : backends_) {
    sum.operations += backend->counters().operations;
    sum.payload_bytes += backend->counters().payload_bytes;
    sum.bytes_copied += backend->counters().bytes_copied;
  }
  metrics_->operations.Set(sum.operations);
  metrics_->payload_bytes.Set(sum.payload_bytes);
  metrics_->bytes_copied.Set(sum.bytes_copied);
}

}  // namespace horocache::runtime
