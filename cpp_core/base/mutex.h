// Mutexes and macros for Clang's thread-safety analysis; other compilers see plain mutexes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#if defined(__clang__)
#define HC_TSA(x) __attribute__((x))
#else
#define HC_TSA(x)
#endif
#define HC_CAPABILITY(name) HC_TSA(capability(name))
#define HC_SCOPED_CAPABILITY HC_TSA(scoped_lockable)
#define HC_GUARDED_BY(x) HC_TSA(guarded_by(x))
#define HC_PT_GUARDED_BY(x) HC_TSA(pt_guarded_by(x))
#define HC_REQUIRES(...) HC_TSA(requires_capability(__VA_ARGS__))
#define HC_EXCLUDES(...) HC_TSA(locks_excluded(__VA_ARGS__))
#define HC_ACQUIRE(...) HC_TSA(acquire_capability(__VA_ARGS__))
#define HC_RELEASE(...) HC_TSA(release_capability(__VA_ARGS__))
#define HC_TRY_ACQUIRE(...) HC_TSA(try_acquire_capability(__VA_ARGS__))
#define HC_NO_THREAD_SAFETY_ANALYSIS HC_TSA(no_thread_safety_analysis)

namespace horocache {

class HC_CAPABILITY("mutex") Mutex {
 public:
  void Lock() HC_ACQUIRE() { mutex_.lock(); }
  bool TryLock() HC_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void Unlock() HC_RELEASE() { mutex_.unlock(); }
  std::mutex& native() { return mutex_; }

 private:
  std::mutex mutex_;
};

class HC_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) HC_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() HC_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits until `ready` or the deadline, in ns of the steady clock; returns ready(). The caller holds the mutex, also
// after the call, and notifies `changed` of changes.
template <typename Ready>
bool WaitUntil(Mutex* mutex, std::condition_variable* changed, int64_t deadline_ns, Ready&& ready) {
  // Adopted: the mutex is locked already, and the caller unlocks it.
  std::unique_lock<std::mutex> held(mutex->native(), std::adopt_lock);
  const std::chrono::steady_clock::time_point deadline{std::chrono::nanoseconds(deadline_ns)};
  const bool is_ready = changed->wait_until(held, deadline, ready);
  held.release();
  return is_ready;
}

}  // namespace horocache
