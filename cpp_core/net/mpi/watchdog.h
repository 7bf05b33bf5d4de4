// Ends a process in which a call of MPI does not return. Some calls wait for other ranks inside the library. In a
// library that fails, any call may hang: Open MPI 5 then asks its launcher to end the job, and waits for ever for the
// answer if the launcher ends in that moment.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/thread.h"

namespace horocache::net {

// A line for people where no logger is left: the process is about to end, or waits in its end.
void SayLine(const std::string& line);

// Calls `late` on a thread of its own if it lives for longer than `limit_ns`; never where no thread can be made.
class Watchdog {
 public:
  Watchdog(int64_t limit_ns, std::function<void()> late);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // For `late`: says the line and ends the process.
  [[noreturn]] static void EndProcess(const std::string& line);

  // For a step of start-up, whose waits all end within kStepNs after `timeout_ns`. If it lives for longer, a call of
  // the library has not returned, and the process ends. `doing` names the step in the message: "ranks met".
  static Watchdog OfStep(int rank, int64_t timeout_ns, const std::string& doing);
  static constexpr int64_t kStepNs = 8 * kNsPerS;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  NamedThread thread_;  // last: joined first
};

}  // namespace horocache::net
