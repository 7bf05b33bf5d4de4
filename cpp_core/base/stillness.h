// Finds out whether the other threads of this process do nothing by themselves. The deadlock check needs it: a rank
// whose threads all sleep will not submit another operation.
//
// A thread sleeps until it is woken if it waits on a private futex, as mutexes, condition variables and Python's locks
// do: only a thread of this process can wake it. A thread that submits operations must wait without a time limit, as it
// may submit again when the time is over. Other threads, such as watchdogs and TensorFlow's data pipelines, may have a
// limit. A thread that reads, polls, sleeps for a time or shares its futex with another process may go on by itself.
// nanosleep() counts as a wait with a time limit: native libraries nap with it, and Python does not.
//
// Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace horocache {

// True if a thread sleeps until another thread of the process wakes it, according to its line of
// /proc/PID/task/TID/syscall. `limited`: its wait may have a time limit.
bool SleepsUntilWoken(const std::string& syscall_line, bool limited);

// How much the other threads may do and still count as still.
enum class Stir {
  // Every thread sleeps until another thread of the process wakes it.
  kNone,
  // Threads that have not submitted may poll, read and nap, with negligible use of the processor. The main thread may
  // not: it may load data before it submits.
  kOfLookersOn,
};

class Stillness {
 public:
  // Checks all threads but the `waiting` ones and horocache's own, whose names begin with "hc-". True if all of them
  // were as still as `allowed` says at the last check, and have been until now. False if the system does not tell.
  bool Look(const std::vector<pid_t>& waiting, const std::vector<pid_t>& submitters, Stir allowed);
  // Makes the next check the first one, which returns false.
  void Forget() { seen_.reset(); }

 private:
  // Processor use of a thread.
  struct Share {
    uint64_t used_ns;
    uint64_t slices;  // how often it was scheduled
  };
  using Shares = std::map<pid_t, Share>;

  static std::optional<Share> ShareOf(const std::string& folder);
  bool IsStill(pid_t thread, const Share& share, int64_t passed_ns, bool sleeps_until_woken) const;

  std::optional<Shares> seen_;  // at the last check; empty if not all threads were still
  int64_t seen_ns_ = 0;
};

}  // namespace horocache
