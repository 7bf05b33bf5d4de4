// Futex: the kernel's wait on a word, also across processes. Every wait has a time-out.
#pragma once

#include <atomic>
#include <cstdint>

namespace horocache {

// Sleeps while `word` is `expected`, at most `timeout_ns`; `bits` chooses which FutexWake calls count. May return
// early.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns, uint32_t bits = ~0u);

// Wakes all sleepers whose bits intersect `bits`.
void FutexWake(const std::atomic<uint32_t>& word, uint32_t bits = ~0u);

// Tells the processor that this is a spin loop.
inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

}  // namespace horocache
