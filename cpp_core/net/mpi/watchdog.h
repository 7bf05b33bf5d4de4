// For calls of MPI that wait for other ranks inside the library, from which there is no way out.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "base/thread.h"

namespace horocache::net {

// A line for people where no logger is left: the process is about to end, or waits in its end.
void SayLine(const std::string& line);

// Calls `late` on a thread of its own if it lives for longer than `limit_ns`.
class Watchdog {
 public:
  Watchdog(int64_t limit_ns, std::function<void()> late);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // For `late`: says the line and ends the process.
  [[noreturn]] static void EndProcess(const std::string& line);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  NamedThread thread_;  // last: joined first
};

}  // namespace horocache::net
