// The operations of a process set that wait before the ranks agree on them.
//
// Note [Operations that are held back]
// Operations that the ranks have agreed on run in the order of the agreement: the lanes of one rank are further than
// those of another, so that none may change it. An operation of a high priority that becomes ready while others wait in
// the lanes would therefore run after all of them. So a rank proposes large allreduces with a priority in batches, the
// highest priorities first: the next batch when the last one is agreed on and no lane has a backlog, that is, a plan
// that waits behind another. Before an operation of the highest priority are then the plan that runs, the one that
// waits, and a batch, and the lanes stay busy. Operations without a priority are proposed at once.
//
// To the other ranks, an operation that is held is one that is not ready yet. So that nothing waits for that in a
// circle, holding is limited by time: ranks in which other operations are of the highest priority must come to propose
// what both have. While no lane has a backlog, a batch that is not agreed on is followed by the next one after
// kPatienceNs; and if none has been proposed for kMostHeldNs, all are. A rank that holds operations is not stuck.
//
// This is the order of Jayarajan et al., "Priority-based Parameter Propagation for Distributed DNN Training" (MLSys
// 2019), for ranks that agree on the order.
//
// Threads: the driving thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "runtime/submission/operation_table.h"
#include "wire/message.h"

namespace horocache::runtime {

class HeldBack {
 public:
  // Operations of up to `small_bytes` are never held: they delay others little, and most have lanes of their own.
  explicit HeldBack(int64_t small_bytes) : small_bytes_(small_bytes) {}

  // True if the operation, which has just been submitted, may be held.
  bool Concerns(const Operation& operation) const {
    const wire::Signature& signature = operation.request.signature;
    return signature.priority != 0 && signature.op == wire::Op::kAllreduce && operation.bytes > small_bytes_;
  }
  void Add(Operation* operation, int64_t now_ns) {
    if (held_.empty()) since_ns_ = now_ns;
    held_.push_back({operation->request.signature.priority, next_number_++, operation});
    std::push_heap(held_.begin(), held_.end());
  }
  bool empty() const { return held_.empty(); }
  // Removes and returns the first of the highest priority.
  Operation* Take() {
    std::pop_heap(held_.begin(), held_.end());
    Operation* const first = held_.back().operation;
    held_.pop_back();
    return first;
  }

  // True if the first of the highest priority may be proposed. There is one.
  bool MayPropose(bool has_backlog, int64_t now_ns) {
    if (has_backlog) return false;
    if (batch_bytes_ == 0 || batch_bytes_ + held_.front().operation->bytes <= kBatchBytes) return true;
    if (now_ns < proposed_ns_ + kPatienceNs) return false;
    ++batch_;
    batch_bytes_ = 0;
    return true;
  }
  // True if none has been proposed for too long: then all must be.
  bool IsOverdue(int64_t now_ns) const { return !held_.empty() && now_ns >= since_ns_ + kMostHeldNs; }
  // When MayPropose or IsOverdue becomes true at the latest, as long as nothing else happens.
  int64_t NextNs(bool has_backlog) const {
    if (held_.empty()) return kNever;
    const int64_t most_ns = since_ns_ + kMostHeldNs;
    return has_backlog ? most_ns : std::min(most_ns, proposed_ns_ + kPatienceNs);
  }
  void NoteProposed(Operation* operation, int64_t now_ns) {
    operation->batch = batch_;
    batch_bytes_ += operation->bytes;
    since_ns_ = proposed_ns_ = now_ns;
  }
  // The operation is agreed on, or has failed.
  void NoteSettled(Operation* operation) {
    if (std::exchange(operation->batch, 0) == batch_) batch_bytes_ -= operation->bytes;
  }

  static constexpr int64_t kBatchBytes = 1 << 20;  // so little that waiting for it is short
  static constexpr int64_t kPatienceNs = kNsPerMs;
  static constexpr int64_t kMostHeldNs = kNsPerS;

 private:
  struct Held {
    int32_t priority;
    uint64_t number;
    Operation* operation;
    bool operator<(const Held& other) const {
      return priority != other.priority ? priority < other.priority : number > other.number;
    }
  };

  const int64_t small_bytes_;
  std::vector<Held> held_;  // a heap
  uint64_t next_number_ = 0;
  int64_t since_ns_ = 0;     // since when operations have been held and none has been proposed
  uint64_t batch_ = 1;       // the number of the batch
  int64_t batch_bytes_ = 0;  // of the operations of the batch that are not settled
  int64_t proposed_ns_ = 0;  // when the last operation was proposed
};

}  // namespace horocache::runtime
