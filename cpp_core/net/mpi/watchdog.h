// Ends a process in which an MPI call does not return. Some calls wait for other ranks inside the library. After an
// error, any call may hang: Open MPI 5 then asks its launcher to end the job, and waits for the answer for ever if the
// launcher ends at that moment.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/thread.h"

namespace horocache::net {

// Writes a line to standard error, where no logger is left: the process is about to end, or waits at its end.
void SayLine(const std::string& line);

// Calls `late`, on a thread of its own, if the watchdog lives for longer than `limit_ns`. Does nothing if no thread can
// be made.
class Watchdog {
 public:
  Watchdog(int64_t limit_ns, std::function<void()> late);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // For `late`: writes the line and ends the process.
  [[noreturn]] static void EndProcess(const std::string& line);

  // A watchdog for a step of start-up whose waits all end within kStepNs after `timeout_ns`. If it lives for longer, an
  // MPI call has not returned, and the process ends. `doing` names the step in the message, such as "the ranks
  // exchanged their addresses".
  static Watchdog OfStep(int rank, int64_t timeout_ns, const std::string& doing);
  static constexpr int64_t kStepNs = 8 * kNsPerS;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  NamedThread thread_;  // last: joined first
};

}  // namespace horocache::net
