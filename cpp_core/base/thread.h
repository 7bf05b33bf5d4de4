// A thread with a name that its destructor joins. Nothing in the core detaches a thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <thread>

namespace horocache {

// The kernel's number of the calling thread, and whether a thread of this process still lives (or another has got its
// number).
pid_t ThisThread();
bool IsAlive(pid_t thread);

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

 private:
  std::thread thread_;
};

}  // namespace horocache
