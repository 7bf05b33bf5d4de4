// Tells about a live rank: to whoever asks on its socket (`horocache dump`), to the other ranks when they ask where
// this one is, and to a file when an operation has failed.
//
// One thread, which sleeps until somebody asks, so that neither the role nor a thread of the user ever waits for a
// file, a socket or a stack. The socket has a name in the kernel's abstract space, "horocache.PID.RANK": it is gone
// with the process, and only the same user (or root) is answered.
//
// Shared: any thread may ask. Owns its thread.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread.h"
#include "base/unique_fd.h"
#include "base/waker.h"
#include "runtime/record_file.h"

namespace horocache::runtime {

class Observer {
 public:
  struct Means {
    // The flight record, as JSON: why it is wanted, and the stacks of the program's threads.
    std::function<std::string(const std::string& why, const std::string& stacks)> record;
    // May take a second; empty if they cannot be had. Null where nobody knows stacks.
    std::function<std::string()> stacks;
    std::function<void(uint32_t process_set, const std::string& stacks)> tell;
    std::function<void(const std::string&)> warn;
  };

  // `record_path`: the file for errors; empty: none. What cannot be had (descriptors, a name) is warned of, and done
  // without.
  Observer(const std::string& socket_name, std::string record_path, Means means);
  ~Observer() { Stop(); }
  // Writes what is still to be written, and joins the thread; later questions get no answer, and later
  // failures are not noted. Idempotent.
  void Stop() HC_EXCLUDES(mutex_);

  // The ranks of the set want to know where this rank is.
  void AskStacks(uint32_t process_set) HC_EXCLUDES(mutex_);
  // Something has failed: the record is written, at most once a second. Cheap. The program may go on, so where the
  // record is said only of an error that ends the job.
  void NoteError(const Status& why) HC_EXCLUDES(mutex_);
  // This rank ends with an error: says where the record is, once, if there is one.
  void TellPath() HC_EXCLUDES(mutex_);
  // In the child of a fork, where the thread does not exist.
  void CloseInChild();

 private:
  struct Asked {
    std::vector<uint32_t> sets;
    std::string error;  // the first since the last record
    bool stop = false;
  };

  void Listen(const std::string& name);
  void Run();
  Asked TakeAsked() HC_EXCLUDES(mutex_);
  int64_t SleepNs() const;
  void Tell(const std::vector<uint32_t>& sets);
  void Answer();
  void WriteRecord();
  std::string Stacks() const { return means_.stacks ? means_.stacks() : std::string(); }

  RecordFile record_;  // of the thread, but for its path
  const Means means_;
  Waker waker_;
  UniqueFd listener_;

  std::atomic<bool> noted_{false}, stopped_{false};
  Mutex mutex_;
  Asked asked_ HC_GUARDED_BY(mutex_);
  bool told_path_ HC_GUARDED_BY(mutex_) = false;
  std::string no_record_ HC_GUARDED_BY(mutex_);  // why there is none

  // Of the thread.
  std::vector<pollfd> polled_;
  std::string unwritten_;   // why a record is due; empty if none is
  int64_t written_ns_ = 0;  // when the last one was

  NamedThread thread_;  // last: it uses everything above
};

}  // namespace horocache::runtime
