// The first part of an operation on rows of a backend that cannot exchange numbers of rows by itself: the ranks run the
// operation on rows without elements, by a backend for the host's memory. That tells each rank how many rows it
// receives from each, and checks the arguments on all ranks alike.
//
// Threads: the driving thread. Ownership: the backend outlives it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/status.h"
#include "data/backend.h"
#include "data/row_layout.h"

namespace horocache::data {

class RowCounting {
 public:
  // Of `collective`, whose one segment has `elements` elements. The caller starts it by Part(), and gives the task
  // back.
  RowCounting() {
    counts_.allocate = [this](int64_t) -> StatusOr<std::byte*> { return &no_element_; };
  }
  Collective Part(const Collective& collective, int64_t elements);
  void Started(std::unique_ptr<CollectiveTask> task) { task_ = std::move(task); }

  // The task under way; null before it is started and once it has ended.
  const CollectiveTask* task() const { return task_.get(); }
  // Does a bounded part of it; true when it has ended.
  bool Test();
  bool ended() const { return ended_; }
  const Status& status() const { return status_; }

  // After it has ended well: where the parts of the tensor, and of the result, lie. In a reducescatter the layout of
  // the result has its number of elements alone.
  Status Plan(const Collective& collective, int rank, int ranks, std::vector<RowPart>* sends, ReceivePlan* receives);

 private:
  std::byte no_element_{};
  VariableOutput counts_;
  std::unique_ptr<CollectiveTask> task_;
  bool ended_ = false;
  Status status_;
};

}  // namespace horocache::data
