// Reports the state of a live rank: to clients of its socket (`horocache dump`), to other ranks that ask for this
// rank's stacks, and to a file when an operation has failed.
//
// The observer's thread sleeps until it gets a request, so the driving thread and the user's threads never wait for a
// file, a socket or a stack. The socket has a name in the kernel's abstract namespace, "horocache.PID.RANK", so it
// vanishes with the process. Only the same user and root get an answer.
//
// Shared: any thread may send requests. Owns its thread.
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
#include "runtime/diagnostics/record_file.h"

namespace horocache::runtime {

class Observer {
 public:
  struct Callbacks {
    // Returns the flight record as JSON. `why`: the reason for it; `stacks`: those of the program's threads.
    std::function<std::string(const std::string& why, const std::string& stacks)> record;
    // Returns the stacks of the program's threads; empty if unavailable. May take a second. May be null.
    std::function<std::string()> stacks;
    // Logs the stacks on every rank of the set.
    std::function<void(uint32_t process_set, const std::string& stacks)> log_stacks;
    // Logs a warning on this rank.
    std::function<void(const std::string&)> warn;
  };

  // `record_path` is the file for flight records; empty: none. If a resource is unavailable (descriptors, the socket's
  // name), logs a warning and works without it.
  Observer(const std::string& socket_name, std::string record_path, Callbacks callbacks);
  ~Observer() { Stop(); }
  // Writes a pending record and joins the thread. Later requests get no answer, and later failures are not recorded.
  // Idempotent.
  void Stop() HC_EXCLUDES(mutex_);

  // Queues an answer to the ranks of the set, which have asked for this rank's stacks.
  void AskStacks(uint32_t process_set) HC_EXCLUDES(mutex_);
  // Records a failure: the thread writes the flight record, at most once a second. Cheap. Logs the record's path only
  // for an error that ends the job, because the program may handle other errors.
  void NoteError(const Status& why) HC_EXCLUDES(mutex_);
  // Logs the path of the record, once, if an error was recorded. For a rank that ends with an error.
  void LogRecordPath() HC_EXCLUDES(mutex_);
  // For the child of a fork, where the thread does not exist.
  void CloseInChild();

 private:
  struct Asked {
    std::vector<uint32_t> sets;
    std::string error;  // the first error since the last record
    bool stop = false;
  };

  void Listen(const std::string& name);
  void Run();
  Asked TakeAsked() HC_EXCLUDES(mutex_);
  int64_t SleepNs() const;
  void SendNote(const std::vector<uint32_t>& sets);
  void Answer();
  void WriteRecord();
  std::string Stacks() const { return callbacks_.stacks ? callbacks_.stacks() : std::string(); }

  RecordFile record_;  // used by the thread, except for its path
  const Callbacks callbacks_;
  Waker waker_;
  UniqueFd listener_;

  std::atomic<bool> noted_{false}, stopped_{false};
  Mutex mutex_;
  Asked asked_ HC_GUARDED_BY(mutex_);
  bool logged_path_ HC_GUARDED_BY(mutex_) = false;
  std::string no_record_ HC_GUARDED_BY(mutex_);  // why the record could not be written

  // Used by the thread only.
  std::vector<pollfd> polled_;
  std::string unwritten_;   // the error of the record that is due; empty: none is due
  int64_t written_ns_ = 0;  // time of the last record

  NamedThread thread_;  // last, because it uses all members above
};

}  // namespace horocache::runtime
