// Sets that come and go: see Note [Process sets at run time] in process_sets.h.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "runtime/coordinator_loop.h"

namespace horocache::runtime {
namespace {

constexpr int64_t kAskNs = 100 * kNsPerMs;  // between two questions whether to go on

}  // namespace

// ---- any thread

// Returns when the holder of the role has taken it, so that what this thread submits next finds things as ordered.
void CoordinatorLoop::Order(SetOrder order) {
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

Status CoordinatorLoop::Add(SetParts set) {
  const uint32_t number = set.config.process_set;
  Order({SetOrder::Kind::kAdd, number, std::make_unique<SetParts>(std::move(set))});
  return JobEnd();
}

Status CoordinatorLoop::Remove(uint32_t number, int64_t deadline_ns, const std::function<bool()>& go_on) {
  Order({SetOrder::Kind::kLeave, number});
  const std::string subject = "process set " + std::to_string(number);
  int64_t ask_ns = NowNs() + kAskNs;
  while (TakeGone(number) == nullptr) {
    const int64_t now_ns = NowNs();
    if (stop_.load()) return {StatusCode::kShutDown, subject + " was being removed when the job was shut down"};
    if (now_ns >= deadline_ns) {
      Drop(number);
      return {StatusCode::kStall, subject + " was dropped: not all of its ranks left it in time"};
    }
    if (now_ns >= ask_ns) {
      if (go_on && !go_on()) return {StatusCode::kAborted, "removing " + subject + " was interrupted"};
      ask_ns = now_ns + kAskNs;
    }
    Nap(kOrderNapNs);
  }
  return Status::Ok();
}

void CoordinatorLoop::Drop(uint32_t number) {
  Order({SetOrder::Kind::kDrop, number});
  TakeGone(number).reset();
}

Status CoordinatorLoop::JobEnd() {
  MutexLock lock(orders_mutex_);
  return job_end_;
}

std::unique_ptr<SetLoop> CoordinatorLoop::TakeGone(uint32_t number) {
  MutexLock lock(orders_mutex_);
  const auto found = std::ranges::find(gone_, number, [](const auto& set) { return set->process_set(); });
  if (found == gone_.end()) return nullptr;
  std::unique_ptr<SetLoop> set = std::move(*found);
  gone_.erase(found);
  return set;
}

// ---- the holder of the role

void CoordinatorLoop::AddSet(SetParts parts) {
  const size_t number = parts.config.process_set;
  sets_.push_back(std::make_unique<SetLoop>(std::move(parts), context_));
  if (by_number_.size() <= number) by_number_.resize(number + 1);
  by_number_[number] = sets_.back().get();
}

SetLoop* CoordinatorLoop::SetOf(uint32_t number) const {
  return number < by_number_.size() ? by_number_[number] : nullptr;
}

void CoordinatorLoop::TakeSetOrders() {
  std::vector<SetOrder> orders;
  {
    MutexLock lock(orders_mutex_);
    orders = std::exchange(set_orders_, {});
  }
  for (SetOrder& order : orders) {
    SetLoop* const set = SetOf(order.number);
    if (order.kind == SetOrder::Kind::kAdd) {
      AddSet(std::move(*order.parts));
      // Without all ranks of the job it would not get far; who made it is told.
      if (const Status& end = sets_.front()->end(); !end.ok()) sets_.back()->Lose(end);
    } else if (set != nullptr && order.kind == SetOrder::Kind::kLeave) {
      set->Leave();
      leaving_.push_back(order.number);
    } else if (set != nullptr) {
      Erase(order.number, "was dropped: one of its ranks could not join it, or did not leave it in time.");
    }
  }
  set_orders_taken_.fetch_add(orders.size());
}

void CoordinatorLoop::EraseLeft() {
  while (true) {
    const auto ended = [this](uint32_t number) HC_NO_THREAD_SAFETY_ANALYSIS { return SetOf(number)->Ended(); };
    const auto found = std::ranges::find_if(leaving_, ended);
    if (found == leaving_.end()) return;
    Erase(*found, "was removed.");
  }
}

void CoordinatorLoop::Erase(uint32_t number, const std::string& why) {
  SetLoop* const set = std::exchange(by_number_[number], nullptr);
  set->Lose({StatusCode::kShutDown, "process set " + std::to_string(number) + " " + why});
  set->HandOut();
  past_counters_.Add(set->counters());
  set->AddDataCounters(&past_data_);
  std::erase(leaving_, number);
  const auto found = std::ranges::find(sets_, set, [](const auto& owned) { return owned.get(); });
  {
    MutexLock lock(orders_mutex_);
    gone_.push_back(std::move(*found));
  }
  sets_.erase(found);
}

void CoordinatorLoop::NoteJobEnd() {
  const Status& end = sets_.front()->end();
  if (job_ended_ || end.ok()) return;
  job_ended_ = true;
  MutexLock lock(orders_mutex_);
  job_end_ = end;
}

}  // namespace horocache::runtime
