#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

#include "base/clock.h"

namespace horocache {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

uint32_t* Address(const std::atomic<uint32_t>& word) {
  return const_cast<uint32_t*>(reinterpret_cast<const uint32_t*>(&word));
}

}  // namespace

void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns, uint32_t bits) {
  if (timeout_ns <= 0) return;
  // FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, which steady_clock is on Linux.
  const int64_t until = NowNs() + timeout_ns;
  const timespec deadline{static_cast<time_t>(until / kNsPerS), static_cast<long>(until % kNsPerS)};
  syscall(SYS_futex, Address(word), FUTEX_WAIT_BITSET, expected, &deadline, nullptr, bits);
}

void FutexWake(const std::atomic<uint32_t>& word, uint32_t bits) {
  syscall(SYS_futex, Address(word), FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, bits);
}

}  // namespace horocache
