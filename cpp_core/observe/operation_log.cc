#include "observe/operation_log.h"

#include <iterator>
#include <utility>

namespace horocache::observe {

void OperationLog::Start(size_t capacity) {
  const MutexLock lock(mutex_);
  capacity_ = capacity;
  on_ = true;
  DropOldest(0);
}

void OperationLog::Stop() {
  const MutexLock lock(mutex_);
  on_ = false;
  records_.clear();
  lost_ = 0;
}

void OperationLog::Add(const OperationTrace& trace) {
  OperationRecord record;
  record.name = trace.name;
  record.op = trace.op;
  record.reduce_op = trace.reduce_op;
  record.dtype = trace.dtype;
  record.backend = trace.backend;
  record.algorithm = trace.algorithm;
  record.chosen_by = trace.chosen_by;
  record.layers = trace.layers;
  record.error = trace.error;
  record.process_set = trace.process_set;
  record.tensors = trace.tensors;
  record.bytes = trace.bytes;
  record.sequence = trace.sequence;
  record.fused = trace.fused;
  record.peer = trace.peer;
  record.submitted_ns = trace.submitted_ns;
  record.agreed_ns = trace.agreed_ns;
  record.started_ns = trace.started_ns;
  record.ended_ns = trace.ended_ns;
  const MutexLock lock(mutex_);
  if (!on_) return;
  DropOldest(1);
  records_.push_back(std::move(record));
}

void OperationLog::DropOldest(size_t room) {
  for (; records_.size() + room > capacity_; ++lost_) records_.pop_front();
}

std::vector<OperationRecord> OperationLog::Take(uint64_t* lost) {
  const MutexLock lock(mutex_);
  std::vector<OperationRecord> taken(std::make_move_iterator(records_.begin()),
                                     std::make_move_iterator(records_.end()));
  records_.clear();
  *lost = std::exchange(lost_, 0);
  return taken;
}

}  // namespace horocache::observe
