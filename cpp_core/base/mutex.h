// Mutexes and macros for Clang's thread-safety analysis; other compilers see plain mutexes.
#pragma once

#include <condition_variable>
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

}  // namespace horocache
