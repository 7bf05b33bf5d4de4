#include "net/mpi/watchdog.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "base/text.h"

namespace horocache::net {

void SayLine(const std::string& line) {
  const std::string text = "horocache: " + line + "\n";
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // standard error is closed, so the line is lost
}

Watchdog::Watchdog(int64_t limit_ns, std::function<void()> late) {
  try {
    thread_ = NamedThread("hc-watchdog", [this, limit_ns, late = std::move(late)] {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_for(lock, std::chrono::nanoseconds(limit_ns), [this] { return over_; })) late();
    });
  } catch (const std::system_error&) {
    // Goes on without a watchdog. Parts that need a thread fail later, where the other ranks can be notified.
  }
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
}

void Watchdog::EndProcess(const std::string& line) {
  SayLine(line + " Ending this process.");
  _exit(EXIT_FAILURE);
}

Watchdog Watchdog::OfStep(int rank, int64_t timeout_ns, const std::string& doing) {
  const int64_t limit_ns = timeout_ns + kStepNs;
  return {limit_ns, [=] {
            EndProcess("rank " + std::to_string(rank) + " has been in a call of MPI when " + doing +
                       ", and the call has not returned within " + SecondsText(limit_ns) +
                       " (HOROCACHE_START_TIMEOUT, and some time). See the output of the MPI library, here and on the "
                       "other ranks.");
          }};
}

}  // namespace horocache::net
