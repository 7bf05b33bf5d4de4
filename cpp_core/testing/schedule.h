// The seeded schedule of a simulation: picks the actor that steps next, and wakes sleeping actors.
//
// Threads: the simulation's one thread, which owns the object.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "base/duration.h"
#include "testing/seeded_random.h"

namespace horocache::testing {

class Schedule {
 public:
  Schedule(uint64_t seed, int actors) : random_(seed), place_(static_cast<size_t>(actors), kNowhere) {}

  void MakeRunnable(int actor) {
    size_t& place = place_[static_cast<size_t>(actor)];
    if (place != kNowhere) return;
    place = runnable_.size();
    runnable_.push_back(actor);
  }
  void MakeAsleep(int actor) {
    size_t& place = place_[static_cast<size_t>(actor)];
    if (place == kNowhere) return;
    place_[static_cast<size_t>(runnable_.back())] = place;
    runnable_[place] = runnable_.back();
    runnable_.pop_back();
    place = kNowhere;
  }
  void WakeAt(int64_t at_ns, int actor) {
    if (at_ns != kNever) timers_.push(Timer{at_ns, order_++, actor});
  }
  void WakeDue(int64_t now_ns) {
    while (!timers_.empty() && timers_.top().at_ns <= now_ns) {
      MakeRunnable(timers_.top().actor);
      timers_.pop();
    }
  }
  int64_t NextNs() const { return timers_.empty() ? kNever : timers_.top().at_ns; }
  bool NoneRunnable() const { return runnable_.empty(); }
  int PickRunnable() { return runnable_[random_.Below(runnable_.size())]; }
  SeededRandom& random() { return random_; }

 private:
  static constexpr size_t kNowhere = ~size_t{0};
  struct Timer {
    int64_t at_ns;
    uint64_t order;
    int actor;
    bool operator>(const Timer& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : order > other.order;
    }
  };

  SeededRandom random_;
  std::vector<int> runnable_;
  std::vector<size_t> place_;  // by actor: its index in runnable_
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  uint64_t order_ = 0;
};

}  // namespace horocache::testing
