// The end of this rank's part of the job when it cannot continue: see Note [Exceptions while driving] in
// progress_engine.h. The loss of another rank is ProgressEngine::Lose in progress_engine.cc.
#include <algorithm>
#include <new>
#include <utility>

#include "base/clock.h"
#include "runtime/progress/progress_engine.h"

namespace horocache::runtime {
namespace {

// How long this rank tries to find the cause by itself after another rank has left a lost job.
constexpr int64_t kFindOutNs = 500 * kNsPerMs;

Status WhyGivenUp(const std::string& own_rank, const std::exception& thrown) {
  if (dynamic_cast<const std::bad_alloc*>(&thrown) == nullptr) {
    return {StatusCode::kInternal, own_rank + " cannot go on, and the job without it: " + thrown.what()};
  }
  return {StatusCode::kOutOfMemory,
          own_rank +
              " has run out of memory in the middle of its collectives; the job cannot go on. Raise its limit (ulimit "
              "-v, the batch system's, the container's), or have it use less."};
}

}  // namespace

void ProgressEngine::GiveUp(const std::exception& thrown) {
  const auto without_memory = [](auto&& act) {
    try {
      act();
    } catch (const std::exception&) {  // the arena carries the reason instead
    }
  };
  reserve_.reset();
  Status why = NoMemoryError();
  without_memory([&] { why = WhyGivenUp(own_rank_, thrown); });
  if (given_up_.ok()) {
    given_up_ = std::move(why);
    gave_up_.store(true);
    if (report_given_up_) report_given_up_(given_up_);
    if (context_.on_operation_abandoned) context_.on_operation_abandoned();
    for (const auto& set : sets_) without_memory([&]() HC_NO_THREAD_SAFETY_ANALYSIS { set->GiveUp(given_up_); });
  }
  // Before the callers get their memory back.
  for (const auto& set : sets_) without_memory([&]() HC_NO_THREAD_SAFETY_ANALYSIS { set->AbandonDevices(given_up_); });
  for (const auto& set : sets_) without_memory([&] { static_cast<void>(set->AwaitDevices()); });
  std::ranges::swap(sets_, half_done_);
  by_number_.clear();
  leaving_.clear();
  drained_.clear();
  table_->FailAll(given_up_);
  job_ended_ = true;
  MutexLock lock(orders_mutex_);
  without_memory([&]() HC_NO_THREAD_SAFETY_ANALYSIS { job_end_ = given_up_; });
}

// Fails operations that were submitted after GiveUp, because they can never run.
bool ProgressEngine::StepGivenUp() {
  TakeOrders();
  if (!table_->HasQueued()) return false;
  table_->FailAll(given_up_);
  return true;
}

bool ProgressEngine::HasMessagesUnderWay() {
  if (!given_up_.ok()) return false;
  const Pass pass(&passes_);
  try {
    return StepMessages(NowNs()) || messages_->Transferring();
  } catch (const std::exception& thrown) {
    GiveUp(thrown);
  }
  return false;
}

// If another rank of this host has given up its part of the job, ends this rank's part with the same reason, unless the
// job ends here by itself.
void ProgressEngine::CheckGivenUpElsewhere(int64_t now_ns) {
  if (!given_up_elsewhere_fn_ || job_ended_) return;
  Status why = given_up_elsewhere_fn_();
  if (why.ok()) {
    given_up_elsewhere_ns_ = 0;
    return;
  }
  if (given_up_elsewhere_ns_ == 0) given_up_elsewhere_ns_ = now_ns;
  const bool finds_out = why.code() != StatusCode::kOutOfMemory && why.code() != StatusCode::kInternal;
  if (finds_out && now_ns - given_up_elsewhere_ns_ < kFindOutNs) return;
  if (!finds_out) why = {StatusCode::kAborted, why.message()};
  EndSets(why, [](const SetEngine&) { return true; });
  messages_->EndWith(why, now_ns);
  doorbell_.Ring();
}

}  // namespace horocache::runtime
