// Adding and removing process sets: see Note [Process sets at run time] in process_sets.h.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "runtime/progress/progress_engine.h"

namespace horocache::runtime {
namespace {

constexpr int64_t kAskNs = 100 * kNsPerMs;  // interval between two calls of go_on

}  // namespace

// ---- any thread

// Returns when the driving thread has taken the order, so that it precedes everything that the caller submits next.
void ProgressEngine::Order(SetOrder order) {
  DestroyUnclaimed();
  uint64_t number = 0;
  {
    MutexLock lock(orders_mutex_);
    set_orders_.push_back(std::move(order));
    number = ++set_orders_placed_;
  }
  ordered_.store(true);
  doorbell_.Ring();
  while (set_orders_taken_.load() < number && !stop_.load()) Nap(kOrderNapNs);
}

Status ProgressEngine::Add(SetParts set) {
  const uint32_t number = set.config.process_set;
  Order({SetOrder::Kind::kAdd, number, std::make_unique<SetParts>(std::move(set))});
  return JobEnd();
}

Status ProgressEngine::Remove(uint32_t number, const std::function<bool()>& go_on) {
  Order({SetOrder::Kind::kLeave, number});
  const std::string subject = "process set " + std::to_string(number);
  for (int64_t ask_ns = NowNs() + kAskNs;; Nap(kOrderNapNs)) {
    if (const auto gone = TakeGone(number); gone != nullptr) return gone->outcome;
    if (stop_.load()) return {StatusCode::kShutDown, subject + " was being removed when the job was shut down"};
    if (gave_up_.load()) return JobEnd();
    if (NowNs() < ask_ns) continue;
    if (go_on && !go_on()) {
      MutexLock lock(orders_mutex_);
      unclaimed_.push_back(number);
      return {StatusCode::kAborted, "removing " + subject + " was interrupted"};
    }
    ask_ns = NowNs() + kAskNs;
  }
}

void ProgressEngine::Drop(uint32_t number) {
  Order({SetOrder::Kind::kDrop, number});
  TakeGone(number).reset();
}

Status ProgressEngine::JobEnd() {
  MutexLock lock(orders_mutex_);
  return job_end_;
}

Status ProgressEngine::WhyLost() {
  MutexLock lock(orders_mutex_);
  if (!job_end_.ok() && job_end_.code() != StatusCode::kShutDown) return job_end_;
  return aborted_.empty() ? Status::Ok() : Status(StatusCode::kAborted, own_rank_ + " aborted: " + aborted_);
}

std::unique_ptr<ProgressEngine::Gone> ProgressEngine::TakeGone(uint32_t number) {
  MutexLock lock(orders_mutex_);
  const auto found = std::ranges::find(gone_, number, [](const auto& gone) { return gone->number; });
  if (found == gone_.end()) return nullptr;
  std::unique_ptr<Gone> gone = std::move(*found);
  gone_.erase(found);
  return gone;
}

// Destroys the sets whose Remove was interrupted.
void ProgressEngine::DestroyUnclaimed() {
  std::vector<uint32_t> numbers;
  {
    MutexLock lock(orders_mutex_);
    numbers = unclaimed_;
  }
  for (const uint32_t number : numbers) {
    if (TakeGone(number) == nullptr) continue;
    MutexLock lock(orders_mutex_);
    std::erase(unclaimed_, number);
  }
}

// ---- the driving thread

void ProgressEngine::AddSet(SetParts parts) {
  const size_t number = parts.config.process_set;
  sets_.push_back(std::make_unique<SetEngine>(std::move(parts), context_));
  if (by_number_.size() <= number) by_number_.resize(number + 1);
  by_number_[number] = sets_.back().get();
}

SetEngine* ProgressEngine::SetOf(uint32_t number) const {
  return number < by_number_.size() ? by_number_[number] : nullptr;
}

void ProgressEngine::TakeSetOrders() {
  std::vector<SetOrder> orders;
  {
    MutexLock lock(orders_mutex_);
    orders = std::exchange(set_orders_, {});
  }
  for (SetOrder& order : orders) {
    SetEngine* const set = SetOf(order.number);
    if (order.kind == SetOrder::Kind::kAdd) {
      AddSet(std::move(*order.parts));
      // The set needs all ranks of the job, so it ends with the job. Add returns the reason.
      if (const Status& end = End(); !end.ok()) sets_.back()->EndWith(end);
    } else if (set != nullptr && order.kind == SetOrder::Kind::kLeave) {
      set->Leave(NowNs());
      leaving_.push_back(order.number);
    } else if (set != nullptr) {
      Erase(order.number, {StatusCode::kShutDown, "process set " + std::to_string(order.number) +
                                                      " was dropped: one of its ranks could not join it."});
    }
  }
  set_orders_taken_.fetch_add(orders.size());
}

void ProgressEngine::EraseLeft() {
  while (true) {
    const auto ended = [this](uint32_t number) HC_NO_THREAD_SAFETY_ANALYSIS { return SetOf(number)->Ended(); };
    const auto found = std::ranges::find_if(leaving_, ended);
    if (found == leaving_.end()) return;
    const Status& reason = SetOf(*found)->end_reason();
    Erase(*found, reason.code() == StatusCode::kShutDown ? Status::Ok() : reason);
  }
}

void ProgressEngine::Erase(uint32_t number, const Status& outcome) {
  SetEngine* const set = std::exchange(by_number_[number], nullptr);
  const std::string subject = "process set " + std::to_string(number);
  set->EndWith({StatusCode::kShutDown, outcome.ok() ? subject + " was removed." : outcome.message()});
  set->HandOut();
  messages_->EndSet(number, subject + " was removed", NowNs());
  table_->ForgetSet(number);
  past_counters_.Add(set->counters());
  set->AddDataCounters(&past_data_);
  std::erase(leaving_, number);
  const auto found = std::ranges::find(sets_, set, [](const auto& owned) { return owned.get(); });
  std::unique_ptr<SetEngine> owned = std::move(*found);
  sets_.erase(found);
  if (owned->broken()) parked_.push_back(std::move(owned));
  MutexLock lock(orders_mutex_);
  gone_.push_back(std::make_unique<Gone>(Gone{number, std::move(owned), outcome}));
}

void ProgressEngine::NoteJobEnd() {
  const Status& end = End();
  if (job_ended_ || end.ok()) return;
  job_ended_ = true;
  MutexLock lock(orders_mutex_);
  job_end_ = end;
}

}  // namespace horocache::runtime
