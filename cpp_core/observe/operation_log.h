// The operations that a rank has completed lately, for the program: a bounded list, which the program takes.
//
// Threads: the driving thread calls Add, any thread the other functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "observe/trace_text.h"

namespace horocache::observe {

// An OperationTrace that owns its texts.
struct OperationRecord {
  std::string name, op, reduce_op, dtype, backend, algorithm, chosen_by, layers, error;
  uint32_t process_set = 0;
  int32_t tensors = 1;
  int64_t bytes = 0;
  uint64_t sequence = 0;  // equal for operations of one plan, unless they are messages
  uint32_t fused = 0;
  int32_t peer = -1;
  int64_t submitted_ns = 0, agreed_ns = 0, started_ns = 0, ended_ns = 0;
};

class OperationLog {
 public:
  // Begins a list of at most `capacity` records, 1 or more; a longer list loses its oldest. The records that are listed
  // already stay, as far as there is room.
  void Start(size_t capacity) HC_EXCLUDES(mutex_);
  void Stop() HC_EXCLUDES(mutex_);
  bool on() const { return on_.load(std::memory_order_relaxed); }
  void Add(const OperationTrace& trace) HC_EXCLUDES(mutex_);
  // Returns the records since the last call, oldest first, and how many were lost.
  std::vector<OperationRecord> Take(uint64_t* lost) HC_EXCLUDES(mutex_);

 private:
  // Makes room for `room` records.
  void DropOldest(size_t room) HC_REQUIRES(mutex_);

  std::atomic<bool> on_{false};
  mutable Mutex mutex_;
  size_t capacity_ HC_GUARDED_BY(mutex_) = 0;
  std::deque<OperationRecord> records_ HC_GUARDED_BY(mutex_);
  uint64_t lost_ HC_GUARDED_BY(mutex_) = 0;
};

}  // namespace horocache::observe
