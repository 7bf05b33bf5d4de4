// What a rank did, as a file in Chrome's trace format, which Perfetto opens: a row for each tensor, with the phases of
// its operations under Horovod's names.
//
// Note [A record for each operation]
// The thread that drives the rank keeps the times of an operation in the operation, and hands over one record when it
// ends; a thread of the timeline's turns records into text and writes it a few times a second. So an operation costs
// one short critical section and a copy of its name, and what is pending appears when it ends. Records that come faster
// than they can be written are dropped, and counted in the file.
//
// Times are those of CLOCK_MONOTONIC, which the processes of a host share; the file says how they differ from those of
// rank 0's host.
//
// Shared: Add and MarkRound by the holder of the role, the rest by any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread.h"
#include "observe/trace_file.h"
#include "observe/trace_text.h"

namespace horocache::observe {

class Timeline : public std::enable_shared_from_this<Timeline> {
 public:
  static constexpr int64_t kPatienceNs = 3'000'000'000;

  // Shared with its thread, which outlives the owner where the file is on a server that does not answer.
  // `warn` is told, once, when nothing can be written any more; it owns what it uses. May be called on the timeline's
  // thread.
  static std::shared_ptr<Timeline> Make(std::function<void(const std::string&)> warn,
                                        int64_t patience_ns = kPatienceNs) {
    return std::shared_ptr<Timeline>(new Timeline(std::move(warn), patience_ns));
  }

  // kInvalidArgument if it is on already, or the file cannot be written.
  Status Start(const std::string& path, bool mark_rounds, const TimelineHeader& header) HC_EXCLUDES(control_mutex_);
  // Writes what there is, and gives up after the patience. False if it was not on.
  bool Stop() HC_EXCLUDES(control_mutex_);
  bool on() const { return on_.load(std::memory_order_relaxed); }
  bool marks_rounds() const { return marks_rounds_.load(std::memory_order_relaxed); }

  void Add(const OperationTrace& trace) HC_EXCLUDES(queue_mutex_);
  void MarkRound(uint32_t process_set, uint64_t round, int64_t now_ns) HC_EXCLUDES(queue_mutex_);
  // In the child of a fork, after which nothing else may be called.
  void CloseInChild() HC_NO_THREAD_SAFETY_ANALYSIS;

 private:
  Timeline(std::function<void(const std::string&)> warn, int64_t patience_ns)
      : warn_(std::move(warn)), patience_ns_(patience_ns) {}

  // Texts are in the batch's own memory, one after the other.
  struct Batch {
    std::vector<OperationTrace> operations;
    std::vector<std::array<uint32_t, 4>> lengths;  // of name, op, backend, error
    std::string texts;
    struct Round {
      uint32_t process_set;
      uint64_t round;
      int64_t at_ns;
    };
    std::vector<Round> rounds;
    uint64_t dropped = 0;

    void Clear();
  };

  void EndThread() HC_REQUIRES(control_mutex_);
  bool Full() HC_REQUIRES(queue_mutex_);
  void Run();
  void AddText(const Batch& batch);
  bool Write();  // false if nothing can be written any more

  const std::function<void(const std::string&)> warn_;
  const int64_t patience_ns_;
  std::atomic<bool> on_{false}, marks_rounds_{false};

  Mutex queue_mutex_;
  Batch queue_ HC_GUARDED_BY(queue_mutex_);
  bool stop_ HC_GUARDED_BY(queue_mutex_) = false;
  std::condition_variable wake_;

  // Of the thread, while it runs.
  std::unique_ptr<TraceFile> file_;
  std::unique_ptr<TraceText> text_;
  std::string news_;  // kept for its memory

  std::atomic<uint32_t> ended_{1};  // the thread has, or there was none yet

  Mutex control_mutex_;
  NamedThread thread_ HC_GUARDED_BY(control_mutex_);
};

}  // namespace horocache::observe
