// Whether the threads of this process all sleep until one of them wakes another: then none of them does anything more
// by itself.
//
// A thread sleeps so if it waits on a private futex, as mutexes, condition variables and Python's locks do: only a
// thread of this process can wake it. A thread that has submitted operations must wait without a time limit, as it may
// submit again when the time is over; others, such as watchdogs and TensorFlow's data pipelines, may have one. A thread
// that reads, polls, sleeps for a time or shares its futex with another process may go on by itself. nanosleep() counts
// as a wait with a time limit: native libraries nap with it, and Python does not.
//
// Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace horocache {

// What a thread does, by a line of /proc/PID/task/TID/syscall. `limited`: it may have a time limit.
bool SleepsUntilWoken(const std::string& syscall_line, bool limited);

class Stillness {
 public:
  // Looks at all threads but the `waiting` ones and horocache's own, whose names begin with "hc-". True if all of them
  // slept at the last look, and have slept on until now. False if the system does not tell.
  bool Look(const std::vector<pid_t>& waiting, const std::vector<pid_t>& submitters);
  // The next look is the first.
  void Forget() { slices_.clear(); }

 private:
  std::map<pid_t, uint64_t> slices_;  // how often each sleeping thread had run at the last look
};

}  // namespace horocache
