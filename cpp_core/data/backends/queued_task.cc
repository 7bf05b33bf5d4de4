#include "data/backends/queued_task.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/memory.h"
#include "data/kernels/copy.h"

namespace horocache::data {
namespace {

// Budget of one Test in bytes: about 100 us on slow memory.
constexpr int64_t kBudgetBytes = 256 << 10;
constexpr int64_t kChargeBytes = 64;  // fixed cost of a piece, in bytes of the budget

}  // namespace

void TaskQueue::Break(Status why) {
  if (!broken_.ok()) return;
  broken_ = std::move(why);
  OnBroken();
}

bool TaskQueue::Drive(QueuedTask* operation) {
  bool moved = false;
  while (!operation->done_) {
    QueuedTask* const head = waiting_.front();
    moved |= head->Advance();
    if (!head->done_) break;
    waiting_.pop_front();
  }
  operation->progressed_ = moved;
  OnDriven();
  return operation->done_;
}

QueuedTask::QueuedTask(TaskQueue* queue, Collective collective, int rank, int size)
    : collective_(std::move(collective)),
      element_bytes_(static_cast<int64_t>(DTypeBytes(collective_.dtype))),
      task_queue_(*queue),
      rank_(rank),
      size_(size) {
  if (!collective_.joined.empty()) {
    joined_.resize(static_cast<size_t>(size), 0);
    for (const int32_t r : collective_.joined) joined_[static_cast<size_t>(r)] = 1;
  }
  for (const Segment& segment : collective_.segments) {
    queue->counters.payload_bytes += static_cast<uint64_t>(segment.count * element_bytes_);
  }
  ++queue->counters.operations;
  queue->waiting_.push_back(this);
}

QueuedTask::~QueuedTask() {
  if (!done_) task_queue_.waiting_.Erase(this);
  try {
    if (!lists_.contributors.empty()) task_queue_.lists_.push_back(std::move(lists_));
    if (done_) return;
    task_queue_.Break({StatusCode::kAborted, collective_.Rank(rank_) + " gave up " +
                                                 std::string(wire::OpName(collective_.op)) +
                                                 " half way; this lane cannot be used any more"});
  } catch (const std::bad_alloc&) {  // without memory this rank's part of the job ends anyway
  }
}

bool QueuedTask::Test() {
  if (done_) return true;
  if (task_queue_.broken().ok()) return task_queue_.Drive(this);
  status_ = task_queue_.broken();
  task_queue_.waiting_.Erase(this);
  return done_ = true;
}

// Returns true if it made progress.
bool QueuedTask::Advance() {
  const FloatMode mode;
  if (!std::exchange(begun_, true)) OnHead();
  bool moved = false;
  for (int64_t budget = kBudgetBytes; !Finished() && budget > 0 && Step(&budget);) moved = true;
  done_ = Finished();
  if (done_) OnFinished();
  return moved || done_;
}

void QueuedTask::Charge(int64_t bytes, int64_t* budget) { *budget -= bytes + kChargeBytes; }

void QueuedTask::Copied(std::byte* to, const std::byte* from, int64_t bytes, bool stream, int64_t* budget) {
  Copy(to, from, static_cast<size_t>(bytes), stream);
  CountCopied(bytes, 1, budget);
}

void QueuedTask::CountCopied(int64_t bytes, int64_t pieces, int64_t* budget) {
  task_queue_.counters.bytes_copied += static_cast<uint64_t>(bytes);
  *budget -= bytes + pieces * kChargeBytes;
}

void QueuedTask::Spread(std::byte* to, const std::byte* from, int64_t bytes, int64_t* budget) {
  Copy(to, from, static_cast<size_t>(bytes), true);
  task_queue_.counters.bytes_folded += static_cast<uint64_t>(bytes);
  Charge(bytes, budget);
}

void QueuedTask::Gather(const SegmentCursor& from, std::byte* to, int64_t count, int64_t* budget) {
  CountCopied(count * element_bytes_, from.Gather(to, count), budget);
}

void QueuedTask::Scatter(const SegmentCursor& to, const std::byte* from, int64_t count, int64_t* budget) {
  CountCopied(count * element_bytes_, to.Scatter(from, count), budget);
}

void QueuedTask::PrepareFold(const KernelSet& kernels) {
  function_ = kernels.Find(collective_.dtype, collective_.reduce_op);
  scaling_ = MakeScaling(collective_.dtype, collective_.reduce_op, collective_.prescale, collective_.postscale,
                         collective_.Divisor(size_));
  if (!task_queue_.lists_.empty()) {
    lists_ = std::move(task_queue_.lists_.back());
    task_queue_.lists_.pop_back();
    lists_.contributors.clear();
  }
  for (int r = 0; r < size_; ++r) {
    if (!joined(r)) lists_.contributors.push_back(r);
  }
}

void QueuedTask::Folded(const FoldCall& call, int64_t* budget) {
  const int64_t bytes = call.count * element_bytes_;
  Fold(function_, collective_.dtype, call);
  task_queue_.counters.bytes_folded += static_cast<uint64_t>(bytes) * (call.second != nullptr ? 2 : 1);
  Charge(bytes, budget);
}

int64_t QueuedTask::PieceElements(int64_t budget) const {
  return RoundUp(std::max<int64_t>(budget, 1), kCacheLine) / element_bytes_;
}

}  // namespace horocache::data
