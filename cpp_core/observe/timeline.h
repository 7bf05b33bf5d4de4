// The timeline of a rank: a file in Chrome's trace format, which Perfetto opens. Each tensor has a row with the phases
// of its operations, under Horovod's names.
//
// Note [One timeline record per operation]
// The driving thread keeps the times of an operation in the operation, and hands over one record when it ends. A thread
// of the timeline turns records into text and writes the text a few times a second. So an operation costs one short
// critical section and a copy of its name, and a pending operation is not in the file until it ends. Records that come
// faster than they can be written are dropped; the file tells how many.
//
// Times are those of CLOCK_MONOTONIC, which the processes of a host share. The file tells by how much they differ from
// the times of rank 0's host.
//
// The same records go to the operation log, if the program has started one.
//
// Threads: the driving thread calls Add and MarkRound, any thread the other functions.
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
#include "observe/operation_log.h"
#include "observe/trace_file.h"
#include "observe/trace_text.h"

namespace horocache::observe {

class Timeline : public std::enable_shared_from_this<Timeline> {
 public:
  // How long Stop waits for the file system, in ns.
  static constexpr int64_t kPatienceNs = 3'000'000'000;

  // The timeline is shared with its thread, which outlives the owner if the file is on a server that does not answer.
  // `warn` is called once, when nothing can be written any more, possibly on the timeline's thread; it must own
  // everything that it uses.
  static std::shared_ptr<Timeline> Make(std::function<void(const std::string&)> warn,
                                        int64_t patience_ns = kPatienceNs) {
    return std::shared_ptr<Timeline>(new Timeline(std::move(warn), patience_ns));
  }

  // kInvalidArgument if the timeline is on already, if the file system of the previous file does not answer, or if the
  // file cannot be written.
  Status Start(const std::string& path, bool mark_rounds, const TimelineHeader& header) HC_EXCLUDES(control_mutex_);
  // Writes the remaining records and ends the file; gives up after `patience_ns`. False if the timeline was not on.
  bool Stop() HC_EXCLUDES(control_mutex_);
  // True if Add has a use for records.
  bool on() const { return on_.load(std::memory_order_relaxed) || log_.on(); }
  bool marks_rounds() const { return marks_rounds_.load(std::memory_order_relaxed); }

  void Add(const OperationTrace& trace) HC_EXCLUDES(queue_mutex_);
  void MarkRound(uint32_t process_set, uint64_t round, int64_t now_ns) HC_EXCLUDES(queue_mutex_);
  // See TraceText::AddTask. Does nothing if the file is off. Any thread.
  void AddTask(std::string_view thread, std::string_view name, int64_t begin_ns, int64_t end_ns)
      HC_EXCLUDES(queue_mutex_);
  // See TraceText::AddExchange. Does nothing if the file is off. Any thread.
  void AddExchange(std::string_view layer, std::string_view name, std::string_view args, int64_t begin_ns,
                   int64_t end_ns) HC_EXCLUDES(queue_mutex_);
  bool writes() const { return on_.load(std::memory_order_relaxed); }  // true if the file is on
  OperationLog& log() { return log_; }
  // For the child of a fork. No other function may be called afterwards.
  void CloseInChild() HC_NO_THREAD_SAFETY_ANALYSIS;

 private:
  Timeline(std::function<void(const std::string&)> warn, int64_t patience_ns)
      : warn_(std::move(warn)), patience_ns_(patience_ns) {}

  // Records that wait for the thread. Their texts are in `texts`, one after the other.
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
    struct Task {
      std::string thread, name;
      int64_t begin_ns, end_ns;
    };
    std::vector<Task> tasks;
    struct Exchange {
      std::string layer, name, args;
      int64_t begin_ns, end_ns;
    };
    std::vector<Exchange> exchanges;
    uint64_t dropped = 0;

    void Clear();
  };

  void EndThread() HC_REQUIRES(control_mutex_);
  bool Full() HC_REQUIRES(queue_mutex_);
  void Run();
  void AddText(const Batch& batch);
  bool Write();  // false after an error, when nothing can be written any more

  const std::function<void(const std::string&)> warn_;
  const int64_t patience_ns_;
  std::atomic<bool> on_{false}, marks_rounds_{false};  // true if the file is on
  OperationLog log_;

  Mutex queue_mutex_;
  Batch queue_ HC_GUARDED_BY(queue_mutex_);
  bool stop_ HC_GUARDED_BY(queue_mutex_) = false;
  std::condition_variable wake_;

  // Used by the thread alone, while it runs.
  std::unique_ptr<TraceFile> file_;
  std::unique_ptr<TraceText> text_;
  std::string pending_text_;  // text that is written next; a member for its memory

  std::atomic<uint32_t> ended_{1};  // futex word: 1 if the thread has ended or was never started

  Mutex control_mutex_;
  NamedThread thread_ HC_GUARDED_BY(control_mutex_);
};

}  // namespace horocache::observe
