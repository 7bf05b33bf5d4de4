// Whether the other threads of this process do nothing more by themselves.
//
// A thread sleeps until it is woken if it waits on a private futex, as mutexes, condition variables and Python's locks
// do: only a thread of this process can wake it. A thread that submits operations must wait without a time limit, as it
// may submit again when the time is over; others, such as watchdogs and TensorFlow's data pipelines, may have one. A
// thread that reads, polls, sleeps for a time or shares its futex with another process may go on by itself. nanosleep()
// counts as a wait with a time limit: native libraries nap with it, and Python does not.
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

// What a thread does, by a line of /proc/PID/task/TID/syscall. `limited`: it may have a time limit.
bool SleepsUntilWoken(const std::string& syscall_line, bool limited);

enum class Stir {
  // Every thread sleeps until another thread of the process wakes it.
  kNone,
  // Threads that have not submitted may poll, read and nap, but use no processor to speak of. The main thread may not,
  // as it may load data before it submits.
  kOfLookersOn,
};

class Stillness {
 public:
  // Looks at all threads but the `waiting` ones and horocache's own, whose names begin with "hc-". True if all of them
  // were as still as `allowed` says at the last look, and have been until now. False if the system does not tell.
  bool Look(const std::vector<pid_t>& waiting, const std::vector<pid_t>& submitters, Stir allowed);
  // The next look is the first.
  void Forget() { seen_.reset(); }

 private:
  // What a thread has had of the processors.
  struct Share {
    uint64_t used_ns;
    uint64_t slices;  // how often it was given one
  };
  using Shares = std::map<pid_t, Share>;

  static std::optional<Share> ShareOf(const std::string& folder);
  bool IsStill(pid_t thread, const Share& share, int64_t passed_ns, bool sleeps_until_woken) const;

  std::optional<Shares> seen_;  // at the last look, if all were still
  int64_t seen_ns_ = 0;
};

}  // namespace horocache
