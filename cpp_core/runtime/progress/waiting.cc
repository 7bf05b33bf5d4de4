// How threads drive a rank and wait: see Note [The progress lock] in progress_engine.h.

#include <algorithm>
#include <new>

#include "base/clock.h"
#include "base/futex.h"
#include "runtime/progress/progress_engine.h"

namespace horocache::runtime {
namespace {

using net::Doorbell;

// The longest sleep. It bounds the delay after a lost wake-up or the loss of a rank.
constexpr int64_t kLongestSleepNs = 100 * kNsPerMs;
// The shortest and the longest nap between two polls for news that rings no doorbell.
constexpr int64_t kShortestNapNs = 20 * kNsPerUs;
constexpr int64_t kLongestNapNs = kNsPerMs;
// The longest nap while nothing is pending, and the ratio of silence to nap. A nap costs up to 50 us of kernel time,
// which is 5 % of a core if naps last 1 ms. So naps grow with the silence, and the first news after it is late by at
// most 1/20 of the silence.
constexpr int64_t kIdleNapNs = 10 * kNsPerMs;
constexpr int64_t kSilencePerNap = 20;
// The nap after a submission. The next submission is seen only when the nap ends.
constexpr int64_t kExpectingNapNs = 300 * kNsPerUs;
// MPI makes progress only inside calls. It is polled without a pause for this long; then the peer counts as late, and
// the driving thread sleeps between polls.
constexpr int64_t kLibraryPollNs = 5 * kNsPerMs;
// How long a waiting thread tries to take the progress lock before it sleeps.
constexpr int64_t kPatienceNs = 50 * kNsPerUs;
}  // namespace

bool ProgressEngine::Wait(Operation* operation, int64_t deadline_ns, WaitKind kind, const std::function<bool()>& go_on,
                          OperationState until) {
  if (Reached(*operation, until)) return true;
  const int64_t began_ns = NowNs();
  StartWaiting(operation, kind);
  bool waiting = true;
  while (waiting && NowNs() < deadline_ns) {
    waiting = !WaitSlice(operation, until, std::min(deadline_ns, NowNs() + kLongestSleepNs));
    if (waiting && go_on && !go_on()) break;
  }
  if (waiting) StopWaiting();
  metrics_->blocked_ns.Add(static_cast<uint64_t>(NowNs() - began_ns));
  return Reached(*operation, until);
}

// Returns true if the operation has come to `until`; the thread then no longer counts as waiting.
bool ProgressEngine::WaitSlice(Operation* operation, OperationState until, int64_t deadline_ns) {
  const auto finished = [operation, until] { return Reached(*operation, until); };
  if (config_.waiter_drives && TryTakePatiently(finished)) {
    metrics_->lock_taken.Add(1);
    doorbell_.Disarm();
    Drive(Doorbell::kWaiter, deadline_ns, finished);
    const bool done = finished();
    if (done) {
      StopWaiting();
      Step(NowNs());  // the other ranks see that this thread no longer waits
    }
    HandBack();
    return done;
  }
  if (!finished()) {
    doorbell_.Ring();  // the driving thread sees that this thread waits
    operation->sleepers.fetch_add(1);
    metrics_->waits_asleep.Add(1);
    const uint32_t state = operation->state.load(std::memory_order_seq_cst);
    if (!finished()) FutexWait(operation->state, state, deadline_ns - NowNs());
    operation->sleepers.fetch_sub(1);
  }
  if (!finished()) return false;
  StopWaiting();
  return true;
}

void ProgressEngine::StartWaiting(const Operation* operation, WaitKind kind) {
  MakeRoomForExceptions();
  {
    MutexLock lock(threads_mutex_);
    try {
      waiters_.push_back({ThisThread(), operation, operation->waits_in.load(std::memory_order_relaxed), kind});
    } catch (const std::bad_alloc&) {  // the wait works without this entry; a deadlock then ends at the stall limit
    }
  }
  waits_changed_.store(true);
  waiting_.fetch_add(1);
}

void ProgressEngine::StopWaiting() {
  waiting_.fetch_sub(1);
  {
    MutexLock lock(threads_mutex_);
    const auto found = std::ranges::find(waiters_, ThisThread(), &Waiter::thread);
    if (found != waiters_.end()) waiters_.erase(found);
  }
  waits_changed_.store(true);
}

void ProgressEngine::BeginOutsideWait() {
  outside_waits_.fetch_add(1);
  waits_changed_.store(true);
}

void ProgressEngine::EndOutsideWait() {
  outside_waits_.fetch_sub(1);
  waits_changed_.store(true);
}

ProgressEngine::Helped ProgressEngine::HelpUntil(const std::function<bool()>& done, int64_t deadline_ns) {
  if (!config_.waiter_drives || !TryTakePatiently(done)) {
    doorbell_.Ring();
    return Helped::kBusy;
  }
  metrics_->lock_taken.Add(1);
  doorbell_.Disarm();
  helping_.store(true);
  Drive(Doorbell::kWaiter, deadline_ns, done);
  helping_.store(false);
  const bool is_done = done();
  if (is_done) {
    EndOutsideWait();
    Step(NowNs());  // the other ranks see that this thread no longer waits
  }
  HandBack();
  return is_done ? Helped::kDone : Helped::kLate;
}

// The progress thread releases the progress lock when it finds a waiting thread, so a short retry saves a hand-over.
bool ProgressEngine::TryTakePatiently(const std::function<bool()>& finished) {
  if (progress_lock_.TryTake()) return true;
  const int64_t until_ns = NowNs() + kPatienceNs;
  for (int64_t now_ns = NowNs(); !finished() && now_ns < until_ns && yielder_.Pays(now_ns); now_ns = NowNs()) {
    yielder_.Yield();
    metrics_->yields.Add(1);
    if (progress_lock_.TryTake()) return true;
  }
  return false;
}

// ---- driving and sleeping

bool ProgressEngine::DrivesLibrary() const {
  return std::ranges::any_of(sets_, [](const auto& set) { return set->lanes_must_poll(); });
}

int64_t ProgressEngine::PatienceNs() const {
  const int64_t usual_ns = config_.spin_ns + config_.yield_ns;
  return DrivesLibrary() ? std::max(usual_ns, kLibraryPollNs) : usual_ns;
}

bool ProgressEngine::StepPatiently(const std::function<bool()>& finished) {
  const int64_t began_ns = NowNs(), patience_ns = PatienceNs();
  for (int64_t now_ns = began_ns; now_ns - began_ns < patience_ns; now_ns = NowNs()) {
    if (Step(now_ns) || finished()) return true;
    if (now_ns - began_ns < config_.spin_ns) {
      for (int i = 0; i < 16; ++i) CpuRelax();
    } else if (!yielder_.Pays(now_ns)) {
      return false;
    } else {
      yielder_.Yield();
      metrics_->yields.Add(1);
    }
  }
  return false;
}

// Without a running collective, the progress of peers in the data plane does not concern this rank.
uint32_t ProgressEngine::Armed(uint32_t who) const { return LanesBusy() ? who | Doorbell::kData : who; }

int64_t ProgressEngine::LongestNapNs(int64_t now_ns) const {
  const auto pending = [](const auto& set) { return set->HasPending(); };
  if (LanesBusy() || std::ranges::any_of(sets_, pending) || messages_->must_poll()) return kLongestNapNs;
  return std::clamp((now_ns - moved_ns_) / kSilencePerNap, kLongestNapNs, kIdleNapNs);
}

int64_t ProgressEngine::SleepNs(int64_t now_ns, int64_t deadline_ns) {
  int64_t wake_ns = deadline_ns;
  for (const auto& set : sets_) wake_ns = std::min(wake_ns, set->NextWakeNs());
  const int64_t sleep_ns = std::min(wake_ns - now_ns, kLongestSleepNs);
  if (!given_up_.ok()) return sleep_ns;
  const bool must_poll = std::ranges::any_of(sets_, [](const auto& set) { return set->must_poll(); });
  if (!must_poll && !messages_->must_poll()) return sleep_ns;
  nap_ns_ = std::clamp(2 * nap_ns_, kShortestNapNs, LongestNapNs(now_ns));
  return std::min(sleep_ns, nap_ns_);
}

void ProgressEngine::Sleep(uint32_t who, int64_t deadline_ns, const std::function<bool()>& finished) {
  const uint32_t seen = doorbell_.Rung();
  doorbell_.Arm(Armed(who));
  const int64_t now_ns = NowNs();
  if (finished() || Step(now_ns)) {  // news came between the last step and the arming
    doorbell_.Disarm();
    return;
  }
  CheckOverdue(now_ns);
  const int64_t sleep_ns = SleepNs(now_ns, deadline_ns);
  blamed_.clear();
  try {
    for (const auto& set : sets_) set->Blame(&blamed_);
  } catch (const std::exception& thrown) {
    GiveUp(thrown);
  }
  metrics_->sleeps.Add(1);
  doorbell_.Sleep(seen, who, sleep_ns);
  doorbell_.Disarm();
  metrics_->wakeups.Add(1);
  const auto slept_ns = static_cast<uint64_t>(NowNs() - now_ns);
  for (const int rank : blamed_) metrics_->wait_ns.at(static_cast<size_t>(rank)).Add(slept_ns);
}

void ProgressEngine::Drive(uint32_t who, int64_t deadline_ns, const std::function<bool()>& finished) {
  while (!finished()) {
    const int64_t now_ns = NowNs();
    if (now_ns >= deadline_ns) return;
    if (Step(now_ns) || finished() || StepPatiently(finished)) continue;
    Sleep(who, deadline_ns, finished);
  }
}

void ProgressEngine::HandBack() {
  // From here on, peers wake the progress thread, which sleeps or is about to.
  doorbell_.Arm(Doorbell::kBackground);
  const auto has_pending = [](const auto& set) { return set->HasPending(); };
  // Messages that arrived before the arming have woken no thread. Messages that wait for a peer need no thread until
  // the peer rings.
  const bool messages = HasMessagesUnderWay();
  const bool more = messages || std::ranges::any_of(sets_, has_pending) || LanesBusy() || ordered_.load() || AnyWaits();
  progress_lock_.Release();
  if (more || table_->HasQueued()) doorbell_.Ring();
}

// Steps while anything moves, and polls for a while longer if a collective or a message is under way.
void ProgressEngine::StepOn() {
  const auto wanted = [this] { return stop_.load() || (config_.waiter_drives && AnyWaits()); };
  while (Step(NowNs()) && !stop_.load()) {
  }
  if (!given_up_.ok() || (!LanesBusy() && !messages_->Transferring())) return;
  // Without a spare core, polling would take time from the thread that computes.
  if (config_.spare_core || DrivesLibrary()) StepPatiently(wanted);
}

void ProgressEngine::Run() {
  metrics_->progress_cpu.Begin();
  bool slept = false, rung = true;
  while (!stop_.load()) {
    const uint32_t seen = doorbell_.Rung();
    if (!progress_lock_.TryTake()) {
      doorbell_.Sleep(seen, Doorbell::kBackground, kLongestSleepNs);
      continue;
    }
    if (slept) metrics_->wakeups.Add(1);
    if (rung) StepOn();  // after a nap without a ring, news is rare, and the step below is enough
    const uint32_t seen_now = doorbell_.Rung();
    doorbell_.Arm(Armed(Doorbell::kBackground));
    const int64_t now_ns = NowNs();
    const bool moved = Step(now_ns);
    CheckOverdue(now_ns);
    const int64_t linger_ns = linger_ns_.load();
    int64_t sleep_ns = SleepNs(now_ns, kNever);
    slept = !moved && !stop_.load();
    const auto has_unflushed = [](const auto& set) { return set->HasUnflushed(); };
    const bool expects_more = slept && std::exchange(expects_more_, false);
    if (expects_more) sleep_ns = std::min({sleep_ns, linger_ns, kExpectingNapNs});
    const bool soon = sleep_ns <= linger_ns;
    const bool lingers = soon && (expects_more || std::ranges::any_of(sets_, has_unflushed));
    if (slept) metrics_->sleeps.Add(1);
    progress_lock_.Release();
    rung = true;
    if (!slept) continue;
    lingers_.store(lingers);
    // Checked after lingers_ is set: either this thread sees the submission, or the submitter sees that it must ring.
    if (!table_->HasQueued()) {
      doorbell_.Sleep(seen_now, Doorbell::kBackground, sleep_ns);
      rung = doorbell_.Rung() != seen_now;
    }
    lingers_.store(false);
  }
  metrics_->progress_cpu.End();
}

}  // namespace horocache::runtime
