// A named thread that its destructor joins, and a call with a limit. The core detaches only threads that hang in the
// kernel or in a library.
#pragma once

#include <sys/types.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <thread>

namespace horocache {

// ThisThread returns the kernel's id of the calling thread. IsAlive is true while a thread of this process has the id
// `thread`; another thread may have got the id meanwhile.
pid_t ThisThread();
bool IsAlive(pid_t thread);

// Allocates the calling thread's room for exceptions now. The C library would allocate it when the thread first throws,
// and end the process if memory has run out by then. Cheap.
void MakeRoomForExceptions();

// The processor time of one thread, which other threads can read. Threads: that thread calls Begin and End, any thread
// Ns.
class ThreadCpuTime {
 public:
  // The first and the last call of the thread.
  void Begin();
  void End();
  int64_t Ns() const;  // since the thread was created; 0 before Begin

 private:
  static constexpr clockid_t kNone = CLOCK_REALTIME;  // stands for "none": this clock does not measure a thread
  std::atomic<clockid_t> clock_{kNone};
  std::atomic<int64_t> at_end_ns_{0};
};

class NamedThread {
 public:
  NamedThread() = default;
  // `name` has at most 15 bytes (the kernel's limit). Signals are blocked in the thread, so that Python's handlers run
  // in Python's threads. Throws std::system_error if no thread can be made.
  NamedThread(const std::string& name, std::function<void()> body);
  ~NamedThread() { Join(); }
  NamedThread(NamedThread&&) = default;
  NamedThread& operator=(NamedThread&& other) noexcept;

  void Join();
  // Detaches the thread, which hangs in a call that cannot be ended. The thread may use only memory that outlives it.
  // False if the object has no thread.
  bool Abandon();

 private:
  std::thread thread_;
};

// A call of a library that may hang, on a thread of its own.
class LimitedCall {
 public:
  // Starts the call. An exception of it ends it, and is lost. The call may last for ever, so it uses shared pointers
  // and copies alone. Throws std::system_error if no thread can be made.
  LimitedCall(const std::string& name, std::function<void()> call);
  // Abandons a call that has not returned.
  ~LimitedCall();
  LimitedCall(const LimitedCall&) = delete;
  LimitedCall& operator=(const LimitedCall&) = delete;

  bool Returned() const { return ReturnedBy(0); }
  // Waits until the call has returned or the time is over (steady-clock ns). True if it has returned.
  bool ReturnedBy(int64_t deadline_ns) const;

 private:
  std::future<void> end_;
  NamedThread thread_;
};

}  // namespace horocache
