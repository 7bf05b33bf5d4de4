// The operations that have ended while a thread held the engine's mutex. Their tasks learn of it when the mutex is
// free.
#pragma once

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "dag/engine.h"

namespace horocache::dag {

struct EndedTask {
  Task* task = nullptr;
  FailurePtr failure;
  bool ran = false;
};

// The first ones need no memory.
class EndedTasks {
 public:
  void Add(EndedTask task) {
    if (count_ < first_.size()) {
      first_[count_++] = std::move(task);
    } else {
      more_.push_back(std::move(task));
    }
  }
  // Calls Task::Ended of each.
  void Tell() const {
    for (size_t i = 0; i < count_; ++i) first_[i].task->Ended(first_[i].failure, first_[i].ran);
    for (const EndedTask& each : more_) each.task->Ended(each.failure, each.ran);
  }

 private:
  std::array<EndedTask, 4> first_;
  size_t count_ = 0;
  std::vector<EndedTask> more_;
};

}  // namespace horocache::dag
