// The operations of a backend that the program implements, on their way to a thread of the program and back.
//
// Note [Backends of the program]
// The driving thread never runs code of the program: that could wait, or need a lock that another thread holds while it
// waits for this one. So the backend queues each operation as a call, and a thread of the program takes it, runs it and
// finishes it. The thread may use the call's memory until then. When the set ends, the call is cancelled; the backend
// waits a moment for the thread to notice. A thread that does not is given up, and the callers' tensors are then never
// freed, because it may still use them (Operation::owner).
//
// A backend that fails on one rank ends the job: the program's code on the other ranks may wait for this rank for ever.
//
// Threads: the driving thread pushes calls and cancels them; one thread of the program takes and finishes them. The
// calls are shared, because either side may end first.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/mutex.h"
#include "base/status.h"
#include "data/fusion_buffer.h"
#include "data/row_layout.h"
#include "wire/message.h"

namespace horocache::data {

// One operation. All members are constant once it is pushed.
struct UserCall {
  wire::Op op = wire::Op::kAllreduce;
  wire::ReduceOp reduce_op = wire::ReduceOp::kSum;  // never an average: the backend divides
  DType dtype = DType::kFloat32;
  int root = -1;
  std::string name;  // for messages
  // allreduce, broadcast, reduce: both are the same memory, which has this rank's tensor and gets the result; of a
  // reduce, only the root's matters. Other operations: the tensor and the result, which are apart.
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int64_t input_count = 0, output_count = 0;  // elements
  // Of operations on rows, by rank: where its part lies in the tensor, and in the result. Empty: there are no parts.
  std::vector<RowPart> sends, receives;
  std::shared_ptr<FusionBuffer> scratch;  // has the memory, or null
};

class UserCalls {
 public:
  // `wake` wakes the driving thread.
  explicit UserCalls(std::function<void()> wake) : wake_(std::move(wake)) {}

  // ---- the driving thread
  // Requires that the call before has ended.
  void Push(std::shared_ptr<const UserCall> call) HC_EXCLUDES(mutex_);
  // True once the call has ended; *status is its result.
  bool TakeEnd(Status* status) HC_EXCLUDES(mutex_);
  // Cancels the call, and lets no further one be taken.
  void Close() HC_EXCLUDES(mutex_);
  // True if no thread of the program uses a call any more; waits for that until the deadline.
  bool AwaitIdle(int64_t deadline_ns) HC_EXCLUDES(mutex_);

  // ---- the thread of the program
  // Null at the deadline, and once closed.
  std::shared_ptr<const UserCall> Take(int64_t deadline_ns) HC_EXCLUDES(mutex_);
  // Ends the call that was taken. An error ends the job.
  void Finish(const Status& status) HC_EXCLUDES(mutex_);
  bool closed() const HC_EXCLUDES(mutex_);

 private:
  const std::function<void()> wake_;
  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const UserCall> call_ HC_GUARDED_BY(mutex_);  // null: none is queued or under way
  bool taken_ HC_GUARDED_BY(mutex_) = false;
  bool ended_ HC_GUARDED_BY(mutex_) = false;
  bool closed_ HC_GUARDED_BY(mutex_) = false;
  Status status_ HC_GUARDED_BY(mutex_);
};

}  // namespace horocache::data
