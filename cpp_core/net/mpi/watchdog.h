// For calls of MPI from which there is no way out: those that wait for other ranks inside the library, and, of a
// library that fails, any. (Open MPI 5 asks its launcher to end the job then, and waits for the answer for ever where
// the launcher has ended in that moment.)
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

  // Ends the process if a step of start-up, which every rank ends by itself after `timeout_ns`, lives for kStepNs more:
  // a call of the library has not returned. `doing` says what: "ranks met".
  static Watchdog OfStep(int rank, int64_t timeout_ns, const std::string& doing);
  static constexpr int64_t kStepNs = 8 * kNsPerS;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  NamedThread thread_;  // last: joined first
};

}  // namespace horocache::net
