// A thread with a name that its destructor joins. The core detaches none but those that hang in the kernel.
#pragma once

#include <sys/types.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

namespace horocache {

// The kernel's number of the calling thread, and whether a thread of this process still lives (or another has got its
// number).
pid_t ThisThread();
bool IsAlive(pid_t thread);

// The C library makes a thread's room for exceptions when the thread first throws, and ends the process where there is
// no memory for it. After this there is room. Cheap.
void MakeRoomForExceptions();

// The processor time of one thread, for others to ask. Threads: Begin and End on that one, Ns on any.
class ThreadCpuTime {
 public:
  // First and last of what the thread does.
  void Begin();
  void End();
  int64_t Ns() const;  // since the thread was made; 0 before Begin

 private:
  static constexpr clockid_t kNone = CLOCK_REALTIME;  // no thread's
  std::atomic<clockid_t> clock_{kNone};
  std::atomic<int64_t> at_end_ns_{0};
};

class NamedThread {
 public:
  NamedThread() = default;
  // `name` has at most 15 bytes (the kernel's limit); signals are blocked in the thread, so that Python's handlers run
  // in Python's threads. Throws std::system_error where no thread can be made.
  NamedThread(const std::string& name, std::function<void()> body);
  ~NamedThread() { Join(); }
  NamedThread(NamedThread&&) = default;
  NamedThread& operator=(NamedThread&& other) noexcept;

  void Join();
  // Nobody waits for it any more: for one that hangs in a call that cannot be ended. It must use nothing that goes.
  // False if there is none.
  bool Abandon();

 private:
  std::thread thread_;
};

}  // namespace horocache
