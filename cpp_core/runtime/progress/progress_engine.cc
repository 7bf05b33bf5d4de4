#include "runtime/progress/progress_engine.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "control/signature.h"

namespace horocache::runtime {
namespace {

using net::Doorbell;

// How long all threads must have waited before a deadlock counts as certain.
constexpr int64_t kStuckNs = 200 * kNsPerMs;
// Interval between two checks of the process's threads.
constexpr int64_t kLookNs = 100 * kNsPerMs;
// How long AwaitPass waits at most for a pass to end.
constexpr int64_t kLongestPassNs = 100 * kNsPerMs;
// Memory reserved for GiveUp: enough for the error texts of thousands of operations.
constexpr size_t kReserveBytes = size_t{1} << 20;

}  // namespace

ProgressEngine::ProgressEngine(const ProgressConfig& config, Parts parts, OperationTable* table, Metrics* metrics,
                               const Logger* logger)
    : config_(config),
      linger_ns_(config.linger_ns),
      full_bytes_(config.full_bytes),
      faults_(std::move(parts.faults)),
      context_{table,
               metrics,
               &faults_,
               logger,
               parts.timeline,
               std::move(parts.on_stack_request),
               std::move(parts.on_operation_abandoned),
               std::move(parts.on_end),
               [this](const control::Settings& settings) { OnSettings(settings); }},
      messages_(std::move(parts.messages)),
      on_settings_(std::move(parts.on_settings)),
      host_monitor_(parts.host_monitor),
      on_lost_elsewhere_(std::move(parts.on_lost_elsewhere)),
      doorbell_(parts.doorbell),
      table_(table),
      metrics_(metrics),
      on_computes_(std::move(parts.on_computes)),
      reserve_(std::make_unique<std::byte[]>(kReserveBytes)),
      own_rank_("rank " + std::to_string(parts.rank)),
      given_up_elsewhere_fn_(std::move(parts.given_up_elsewhere)),
      report_given_up_(std::move(parts.report_given_up)) {
  blamed_.reserve(metrics->wait_ns.size());
  for (SetParts& set : parts.sets) AddSet(std::move(set));
  thread_ = NamedThread("hc-progress", [this] { Run(); });
}

ProgressEngine::~ProgressEngine() { static_cast<void>(Stop()); }

Status ProgressEngine::Stop() {
  Lose(kEverySet, {StatusCode::kShutDown, "horocache was shut down on this rank."});
  stop_.store(true);
  doorbell_.Ring();
  thread_.Join();
  // A waiting thread may hold the lock until it takes the order above, which ends its wait.
  while (!progress_lock_.TryTake()) Nap(kOrderNapNs);
  const Status end = EndInOrder();
  // If the job is lost, the other ranks may not say goodbye, and this rank does not wait for them.
  const bool together = end.ok() || end.code() == StatusCode::kShutDown || end.code() == StatusCode::kAborted;
  if (host_monitor_ != nullptr && together) host_monitor_->SayGoodbye();
  progress_lock_.Release();
  return end;
}

Status ProgressEngine::EndInOrder() {
  const Pass pass(&passes_);
  try {
    TakeOrders();
    TakeSubmissions(NowNs());
    for (const auto& set : sets_) set->HandOut();
    if (given_up_.ok()) messages_->SayGoodbye();
  } catch (const std::exception& thrown) {
    GiveUp(thrown);
  }
  return End();
}

// ---- any thread

void ProgressEngine::NoteSubmitter() {
  const pid_t self = ThisThread();
  if (last_submitter_.load(std::memory_order_relaxed) == self) return;
  MakeRoomForExceptions();
  MutexLock lock(threads_mutex_);
  if (std::ranges::find(submitters_, self) == submitters_.end()) submitters_.push_back(self);
  last_submitter_.store(self, std::memory_order_relaxed);
}

Status ProgressEngine::NoteSubmission(bool wake, bool urgent, int64_t bytes) {
  if (const int64_t full = full_bytes_.load(std::memory_order_relaxed); full > 0) {
    const int64_t counted = std::min(bytes, full);  // so that no sum overflows
    const bool fills = gathered_bytes_.fetch_add(counted, std::memory_order_relaxed) >= full - counted;
    if (fills && lingers_.load()) doorbell_.Ring();
  }
  if (wake && (urgent || !lingers_.load() || waiting_.load() > 0)) doorbell_.Ring();
  return faults_.At("submit");
}

int64_t ProgressEngine::StuckIn(int64_t now_ns) {
  if (waiting_.load() == 0 || LanesBusy()) {
    still_since_ns_ = 0;
    return kNowhere;
  }
  if (still_since_ns_ == 0) {
    still_since_ns_ = now_ns;
    stillness_.Forget();
    looked_ns_ = 0;
  }
  return now_ns - still_since_ns_ >= kStuckNs ? WhereSubmittersWait(now_ns) : kNowhere;
}

int64_t ProgressEngine::WhereSubmittersWait(int64_t now_ns) {
  int64_t where = kNowhere;
  Stir allowed = Stir::kNone;
  std::vector<pid_t> waiting;
  std::vector<pid_t> submitters;
  {
    MutexLock lock(threads_mutex_);
    std::erase_if(submitters_, [](pid_t thread) { return !IsAlive(thread); });
    if (submitters_.empty() || waiters_.empty()) return kNowhere;
    where = waiters_.front().waits_in;
    if (where == Operation::kMessage) return kNowhere;
    bool in_pool = false;
    for (const Waiter& waiter : waiters_) {
      in_pool |= waiter.kind == WaitKind::kForGoodInPool;
      const bool there = waiter.kind != WaitKind::kLimited && waiter.waits_in == where && !IsDone(*waiter.operation);
      if (there) waiting.push_back(waiter.thread);
    }
    const auto waits = [&waiting](pid_t thread) { return std::ranges::find(waiting, thread) != waiting.end(); };
    if (!in_pool && std::ranges::all_of(submitters_, waits)) {
      allowed = Stir::kOfLookersOn;
    } else if (waiting.size() < waiters_.size()) {
      return kNowhere;
    }
    submitters = submitters_;
  }
  return RestIsStill(now_ns, waiting, submitters, allowed) ? where : kNowhere;
}

bool ProgressEngine::RestIsStill(int64_t now_ns, const std::vector<pid_t>& waiting,
                                 const std::vector<pid_t>& submitters, Stir allowed) {
  if (now_ns - looked_ns_ < kLookNs) return rest_is_still_;
  looked_ns_ = now_ns;
  rest_is_still_ = stillness_.Look(waiting, submitters, allowed);
  return rest_is_still_;
}

void ProgressEngine::Lose(int rank, const Status& why) {
  {
    MutexLock lock(orders_mutex_);
    losses_.push_back({rank, why});
  }
  ordered_.store(true);
  doorbell_.Ring();
}

void ProgressEngine::Abort(const std::string& why) {
  {
    MutexLock lock(orders_mutex_);
    abort_ = why.empty() ? "no reason given" : why;
    if (aborted_.empty()) aborted_ = abort_;
  }
  ordered_.store(true);
  doorbell_.Ring();
}

void ProgressEngine::SendNote(uint32_t process_set, const std::string& text) {
  {
    MutexLock lock(orders_mutex_);
    notes_.emplace_back(process_set, text);
  }
  ordered_.store(true);
  doorbell_.Ring();
}

void ProgressEngine::Configure(const std::string& settings) {
  {
    MutexLock lock(orders_mutex_);
    settings_.push_back(settings);
  }
  ordered_.store(true);
  doorbell_.Ring();
}

void ProgressEngine::Leave(int64_t deadline_ns) {
  {
    MutexLock lock(orders_mutex_);
    leave_ = true;
  }
  ordered_.store(true);
  doorbell_.Ring();
  const auto ended = [this]() HC_NO_THREAD_SAFETY_ANALYSIS { return Ended(); };
  while (NowNs() < deadline_ns) {
    if (!progress_lock_.TryTake()) {
      doorbell_.Ring();
      Nap(kOrderNapNs);
      continue;
    }
    doorbell_.Disarm();
    Drive(Doorbell::kWaiter, deadline_ns, ended);
    const bool done = Ended();
    HandBack();
    if (done) return;
  }
}

// ---- the driving thread

void ProgressEngine::TakeOrders() {
  if (!ordered_.exchange(false)) return;
  TakeSetOrders();
  std::vector<Loss> losses;
  std::vector<std::pair<uint32_t, std::string>> notes;
  std::vector<std::string> settings;
  std::string abort;
  bool leave = false;
  {
    MutexLock lock(orders_mutex_);
    notes = std::exchange(notes_, {});
    settings = std::exchange(settings_, {});
    losses = std::exchange(losses_, {});
    abort = std::exchange(abort_, {});
    leave = std::exchange(leave_, false);
  }
  if (!given_up_.ok()) return;
  if (!abort.empty()) AbortSets(abort);
  for (const Loss& loss : losses) {
    if (host_monitor_ != nullptr && loss.rank != kEverySet) host_monitor_->NoteLost(loss.rank, loss.why, NowNs());
    LoseRank(loss.rank, loss.why, NowNs());
  }
  if (leave) {
    for (const auto& set : sets_) set->Leave(NowNs());
  }
  // A farewell means that this rank has ended well. A rank that aborts sends none; the sets' last round carries its
  // reason.
  if (leave && !aborts_) {
    TakeSubmissions(NowNs());  // earlier messages go before the farewell
    messages_->Leave(NowNs());
  }
  // The caller has checked them, so that only a set that has ended refuses them.
  for (const std::string& text : settings) static_cast<void>(sets_.front()->Configure(text));
  for (const auto& [number, text] : notes) {
    if (SetEngine* const set = SetOf(number); set != nullptr) set->SendNote(text);
  }
}

void ProgressEngine::OnSettings(const control::Settings& settings) {
  if (settings.cycle_time_ns) linger_ns_.store(*settings.cycle_time_ns);
  if (settings.fusion_threshold_bytes) full_bytes_.store(*settings.fusion_threshold_bytes);
  if (on_settings_) on_settings_(settings);
}

void ProgressEngine::LoseRank(int rank, const Status& why, int64_t now_ns) {
  EndSets(why, [rank](const SetEngine& set) { return rank == kEverySet || set.Has(rank); });
  messages_->EndWith(why, now_ns);
}

void ProgressEngine::EndSets(const Status& why, const std::function<bool(const SetEngine&)>& ends) {
  for (const auto& set : sets_) {
    if (ends(*set)) set->StopDevices(why);
  }
  for (const auto& set : sets_) {
    if (ends(*set)) set->EndWith(why);
  }
}

void ProgressEngine::StepHostMonitor(int64_t now_ns) {
  if (host_monitor_ == nullptr || !host_monitor_->Step(now_ns)) return;
  for (net::HostMonitor::Loss loss; host_monitor_->NextLoss(&loss);) {
    on_lost_elsewhere_(loss.rank, loss.why.message());
    LoseRank(loss.rank, loss.why, now_ns);
  }
}

void ProgressEngine::AwaitPass() const {
  const uint32_t seen = passes_.load(std::memory_order_acquire);
  if (seen % 2 == 0) return;
  const int64_t until_ns = NowNs() + kLongestPassNs;
  while (passes_.load(std::memory_order_acquire) == seen && NowNs() < until_ns) sched_yield();
}

void ProgressEngine::AbortSets(const std::string& why) {
  aborts_ = true;
  for (const auto& set : sets_) set->Abort(why);
}

void ProgressEngine::TakeSubmissions(int64_t now_ns) {
  table_->Drain(&drained_);
  if (!drained_.empty()) still_since_ns_ = 0;
  for (Operation* operation : drained_) {
    if (wire::IsPointToPoint(operation->request.signature.op)) {
      messages_->Submit(operation, now_ns);
    } else if (SetEngine* set = SetOf(operation->process_set); set != nullptr) {
      set->Submit(operation, now_ns);
      expects_more_ |= !set->alone();
    } else {
      table_->Finish(operation,
                     InvalidArgumentError(control::Describe(operation->request.signature) + " came when process set " +
                                          std::to_string(operation->process_set) + " had been removed"));
    }
  }
}

void ProgressEngine::TakeWaits() {
  if (!waits_changed_.load() || !waits_changed_.exchange(false)) return;
  const bool outside = outside_waits_.load() > 0;
  MutexLock lock(threads_mutex_);
  for (const auto& set : sets_) {
    const auto waits = [number = int64_t{set->process_set()}](const Waiter& waiter) {
      return waiter.waits_in == number;
    };
    set->SetWaiting(outside || std::ranges::any_of(waiters_, waits));
  }
}

bool ProgressEngine::Step(int64_t now_ns) {
  const Pass pass(&passes_);
  try {
    return given_up_.ok() ? StepAll(now_ns) : StepGivenUp();
  } catch (const std::exception& thrown) {
    GiveUp(thrown);
  }
  return true;
}

const Status& ProgressEngine::End() const { return given_up_.ok() ? sets_.front()->end() : given_up_; }

bool ProgressEngine::StepAll(int64_t now_ns) {
  TakeOrders();
  TakeWaits();  // before the submissions: a visible waiter's submissions are already queued
  TakeSubmissions(now_ns);
  EraseLeft();
  StepHostMonitor(now_ns);
  const int64_t stuck_in = StuckIn(now_ns);
  bool moved = false;
  for (const auto& set : sets_) {
    const SetEngine::Progress progress = set->Step(now_ns, set->process_set() == stuck_in);
    moved |= progress.moved;
    if (progress.planned) still_since_ns_ = 0;
    if (!progress.moved) continue;
    if (const Status fault = set->TakeFault(); !fault.ok()) AbortSets(fault.message());
  }
  if (std::ranges::none_of(sets_, [](const auto& set) { return set->HasUnflushed(); }))
    gathered_bytes_.store(0, std::memory_order_relaxed);
  moved |= StepMessages(now_ns);
  NoteJobEnd();
  if (!moved) return false;
  nap_ns_ = 0;
  moved_ns_ = now_ns;
  SpreadAbort();
  PublishMetrics();
  return true;
}

// An abort ends every process set on every rank, including sets without the aborting rank.
void ProgressEngine::SpreadAbort() {
  const Status& end = End();
  if (end.code() != StatusCode::kAborted) return;
  EndSets(end, [this](const SetEngine& set)
                   HC_NO_THREAD_SAFETY_ANALYSIS { return &set != sets_.front().get() && !set.Ended(); });
}

bool ProgressEngine::StepMessages(int64_t now_ns) {
  // A rank that shuts down sends its peers farewells. Any other end of the global set ends the whole job, messages
  // included.
  const Status& end = End();
  if (!end.ok() && end.code() != StatusCode::kShutDown) messages_->EndWith(end, now_ns);
  return messages_->Step(now_ns);
}

bool ProgressEngine::LanesBusy() const {
  return std::ranges::any_of(sets_, [](const auto& set) { return set->LanesBusy(); });
}

bool ProgressEngine::Ended() const {
  if (!given_up_.ok()) return true;
  const bool announced = aborts_ || messages_->HasLeft();
  return announced && std::ranges::all_of(sets_, [](const auto& set) { return set->Ended(); });
}

void ProgressEngine::CheckOverdue(int64_t now_ns) {
  const Pass pass(&passes_);
  try {
    if (given_up_.ok()) CheckAll(now_ns);
  } catch (const std::exception& thrown) {
    GiveUp(thrown);
  }
}

void ProgressEngine::CheckAll(int64_t now_ns) {
  CheckGivenUpElsewhere(now_ns);
  user_time_.Sample(now_ns, UserTime::OfProcessNs() - metrics_->progress_cpu.Ns());
  if (on_computes_ && user_time_.computes()) on_computes_(now_ns);
  for (const auto& set : sets_) {
    set->SetComputes(user_time_.computes());
    set->CheckOverdue(now_ns);
  }
  messages_->Check(now_ns);
  std::string report;
  while (messages_->NextReport(&report)) context_.logger->Warning(report);
}

void ProgressEngine::PublishMetrics() {
  control::ControllerCounters sum = past_counters_;
  data::DataCounters data = past_data_;
  for (const auto& set : sets_) {
    sum.Add(set->counters());
    set->AddDataCounters(&data);
  }
  metrics_->rounds.Set(sum.rounds);
  metrics_->slow_rounds.Set(sum.slow_rounds);
  metrics_->flushes.Set(sum.flushes);
  metrics_->hits.Set(sum.hits);
  metrics_->misses.Set(sum.misses);
  metrics_->changed.Set(sum.changed);
  metrics_->evictions.Set(sum.evictions);
  metrics_->growths.Set(sum.growths);
  metrics_->control_bytes.Set(sum.control_bytes);
  metrics_->frames.Set(sum.frames);
  metrics_->operations.Set(data.operations);
  metrics_->payload_bytes.Set(data.payload_bytes);
  metrics_->bytes_copied.Set(data.bytes_copied);
  metrics_->bytes_folded.Set(data.bytes_folded);
  metrics_->program_operations.Set(data.programs);
}

}  // namespace horocache::runtime
