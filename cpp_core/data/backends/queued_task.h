// The operations of one backend and lane. They run one after the other, in the order in which they were started.
//
// Threads: the driving thread. Ownership: the lane owns the operations, the backend owns the queue; the queue outlives
// the operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/block_pool.h"
#include "base/ring_queue.h"
#include "base/status.h"
#include "data/backend.h"
#include "data/backends/segment_cursor.h"
#include "data/kernels/fold.h"

namespace horocache::data {

class QueuedTask;

// Lists for the folds of one operation. Later operations reuse their memory.
struct FoldLists {
  std::vector<int> contributors;         // ranks with data
  std::vector<const std::byte*> inputs;  // of one piece, one per contributor
};

// Has the memory of the operations, too: `new (queue) Some(queue, ...)`.
class TaskQueue : public BlockPool {
 public:
  virtual ~TaskQueue() = default;
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // Not ok once an operation was abandoned or failed half way: this rank is then out of step with the others, and the
  // queue runs nothing more.
  const Status& broken() const { return broken_; }
  // Breaks the queue for good; the first reason stays.
  void Break(Status why);

  DataCounters counters;

 protected:
  TaskQueue() = default;
  // The oldest unfinished operation; null if all are finished.
  const QueuedTask* head() const { return waiting_.empty() ? nullptr : waiting_.front(); }

 private:
  friend class QueuedTask;
  // Advances the operations before `operation`, and then `operation`, by a bounded amount of work; true when
  // `operation` is finished.
  bool Drive(QueuedTask* operation);
  virtual void OnDriven() {}
  virtual void OnBroken() {}

  RingQueue<QueuedTask*> waiting_;
  std::vector<FoldLists> lists_;  // of deleted operations
  Status broken_;
};

class QueuedTask : public CollectiveTask, public Pooled {
 public:
  ~QueuedTask() override;
  QueuedTask(const QueuedTask&) = delete;
  QueuedTask& operator=(const QueuedTask&) = delete;

  bool Test() final;
  Status status() const final { return status_; }
  bool progressed() const final { return progressed_; }
  std::vector<Segment> TakeSegments() final { return std::move(collective_.segments); }

 protected:
  QueuedTask(TaskQueue* queue, Collective collective, int rank, int size);

  // Does a part of the work that is possible now; false if the operation has to wait for another rank. Reduces the
  // budget by the bytes that it moved (see Charge), and is called again while budget is left.
  virtual bool Step(int64_t* budget) = 0;
  virtual bool Finished() const = 0;
  // Called once before the first Step, when the operation has become the head of the queue.
  virtual void OnHead() {}
  virtual void OnFinished() {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool done() const { return done_; }
  bool joined(int rank) const { return !joined_.empty() && joined_[static_cast<size_t>(rank)] != 0; }
  // Takes a piece of `bytes` off the budget. Each piece also has a fixed cost, so that a Test with very many tiny
  // segments does not take long.
  static void Charge(int64_t bytes, int64_t* budget);
  // Copies and charges one piece; with `stream` around the caches.
  void Copied(std::byte* to, const std::byte* from, int64_t bytes, bool stream, int64_t* budget);
  // Runs the fold and charges it.
  void Folded(const FoldCall& call, int64_t* budget);
  // Gather copies `count` elements of many small segments to `to`; Scatter copies them from `from` to the segments.
  void Gather(const SegmentCursor& from, std::byte* to, int64_t count, int64_t* budget);
  void Scatter(const SegmentCursor& to, const std::byte* from, int64_t count, int64_t* budget);
  // Copies a part of the result that was just folded to one more output.
  void Spread(std::byte* to, const std::byte* from, int64_t bytes, int64_t* budget);
  // Chooses the kernel, the scaling and the contributors of a reduction. Called once, before the first fold.
  void PrepareFold(const KernelSet& kernels);
  // Makes `call` a fold in rank order: `input_of(rank)` returns the address of that contributor's elements.
  template <typename F>
  void FoldInRankOrder(FoldCall* call, F&& input_of);
  // Number of elements of the next piece: the rest of the budget, rounded up to whole cache lines.
  int64_t PieceElements(int64_t budget) const;

  // The ranks that contribute data to a reduction: all ranks that have not joined.
  const std::vector<int>& contributors() const { return lists_.contributors; }

  Collective collective_;
  const int64_t element_bytes_;
  Status status_;
  Scaling scaling_;  // of a reduction

 private:
  friend class TaskQueue;
  bool Advance();
  void CountCopied(int64_t bytes, int64_t pieces, int64_t* budget);

  TaskQueue& task_queue_;
  const int rank_, size_;
  std::vector<uint8_t> joined_;
  FoldFunction function_ = nullptr;
  FoldLists lists_;
  bool begun_ = false;
  bool done_ = false;
  bool progressed_ = false;
};

template <typename F>
void QueuedTask::FoldInRankOrder(FoldCall* call, F&& input_of) {
  lists_.inputs.clear();
  for (const int rank : lists_.contributors) lists_.inputs.push_back(input_of(rank));
  call->inputs = lists_.inputs.data();
  call->num_inputs = static_cast<int>(lists_.inputs.size());
  call->scaling = scaling_;
}

}  // namespace horocache::data
