// Operations of one backend and lane that run one after the other, in the order in which they were started.
//
// Role: lanes. Ownership: the lane owns the operations, the backend owns the queue; the queue outlives the operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/ring_queue.h"
#include "base/status.h"
#include "data/backend.h"
#include "data/backends/segment_cursor.h"
#include "data/kernels/fold.h"

namespace horocache::data {

class QueuedOperation;

// What a fold needs besides, kept from one operation to the next.
struct FoldLists {
  std::vector<int> contributors;         // ranks with data
  std::vector<const std::byte*> inputs;  // of one piece
};

class OperationQueue {
 public:
  virtual ~OperationQueue();
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  // Not ok: an operation was given up half way, so this rank is out of step with the others, and none can run here any
  // more.
  const Status& broken() const { return broken_; }
  void Break(Status why);

  DataCounters counters;

 protected:
  OperationQueue() = default;
  // The first one that is not finished; null if there is none.
  const QueuedOperation* head() const { return waiting_.empty() ? nullptr : waiting_.front(); }

 private:
  friend class QueuedOperation;
  // Memory of an operation; that of one before it where one fits.
  void* TakeBlock(size_t bytes);
  void GiveBlock(void* block, size_t bytes) { blocks_.emplace_back(bytes, block); }
  // Moves the operations before `operation` and itself on by a bounded amount; true when it is finished.
  bool Drive(QueuedOperation* operation);
  virtual void OnDriven() {}
  virtual void OnBroken() {}

  RingQueue<QueuedOperation*> waiting_;
  std::vector<std::pair<size_t, void*>> blocks_;  // that operations left
  std::vector<FoldLists> lists_;                  // the same
  Status broken_;
};

class QueuedOperation : public Operation {
 public:
  // Operations live in blocks of their queue, so that steady state allocates nothing: `new (queue) Some(queue, ...)`.
  static void* operator new(size_t bytes, OperationQueue* queue);
  static void operator delete(void* memory);
  static void operator delete(void* memory, OperationQueue*) { operator delete(memory); }
  ~QueuedOperation() override;
  QueuedOperation(const QueuedOperation&) = delete;
  QueuedOperation& operator=(const QueuedOperation&) = delete;

  bool Test() final;
  Status status() const final { return status_; }
  bool progressed() const final { return progressed_; }
  std::vector<Segment> TakeSegments() final { return std::move(collective_.segments); }

 protected:
  QueuedOperation(OperationQueue* queue, Collective collective, int rank, int size);

  // Does a part of the next thing that can be done; false if it has to wait. Called again while there is budget, which
  // it reduces by the bytes that it moved.
  virtual bool Step(int64_t* budget) = 0;
  virtual bool Finished() const = 0;
  // Before the first step, when it is the first in the queue.
  virtual void OnHead() {}
  virtual void OnFinished() {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool done() const { return done_; }
  bool joined(int rank) const { return !joined_.empty() && joined_[static_cast<size_t>(rank)] != 0; }
  // Takes work off the budget. A piece costs something besides its bytes: very many tiny segments must not make a Test
  // long.
  static void Charge(int64_t bytes, int64_t* budget);
  // Copies, with `stream` around the caches.
  void Copied(std::byte* to, const std::byte* from, int64_t bytes, bool stream, int64_t* budget);
  void Folded(const FoldCall& call, int64_t* budget);
  // Copies `count` elements of many small segments into one place, and from one place into them.
  void Gather(const SegmentCursor& from, std::byte* to, int64_t count, int64_t* budget);
  void Scatter(const SegmentCursor& to, const std::byte* from, int64_t count, int64_t* budget);
  // Stores a part of the result that was just folded in one more place.
  void Spread(std::byte* to, const std::byte* from, int64_t bytes, int64_t* budget);
  // Of a reduction, before its first fold.
  void PrepareFold(const KernelSet& kernels);
  // Makes `call` a fold in rank order: `input_of(rank)` is where the elements of a rank with data lie.
  template <typename F>
  void FoldInRankOrder(FoldCall* call, F&& input_of);
  // Elements of one go: what is left of the budget, in whole cache lines.
  int64_t PieceElements(int64_t budget) const;

  // Ranks that take part in a reduction with data.
  const std::vector<int>& contributors() const { return lists_.contributors; }

  Collective collective_;
  const int64_t element_bytes_;
  Status status_;
  Scaling scaling_;  // of a reduction

 private:
  friend class OperationQueue;
  bool Advance();
  void CountCopied(int64_t bytes, int64_t pieces, int64_t* budget);

  OperationQueue& line_;
  const int rank_, size_;
  std::vector<uint8_t> joined_;
  FoldFunction function_ = nullptr;
  FoldLists lists_;
  bool begun_ = false;
  bool done_ = false;
  bool progressed_ = false;
};

template <typename F>
void QueuedOperation::FoldInRankOrder(FoldCall* call, F&& input_of) {
  lists_.inputs.clear();
  for (const int rank : lists_.contributors) lists_.inputs.push_back(input_of(rank));
  call->inputs = lists_.inputs.data();
  call->num_inputs = static_cast<int>(lists_.inputs.size());
  call->scaling = scaling_;
}

}  // namespace horocache::data
