// The runtime that this process's kernels submit to.
//
// TensorFlow calls kernels on its own threads and passes no context of horocache to them, so a process has one bridge.
// Python attaches the session's runtime when the session starts, and detaches it when the session ends.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <shared_mutex>

#include "capi/hc.h"

namespace horocache::tensorflow {

class Bridge {
 public:
  static Bridge& Get();

  void Attach(const hc_api* api, hc_runtime* runtime);
  // Returns when no kernel uses the runtime any more. The runtime must be stopped before, so that no kernel waits for
  // other ranks.
  void Detach();
  // Called in the child of a fork: Use takes no lock from now on, because threads that held it may be missing.
  void ForkedChild() { forked_.store(true); }

  enum class For { kOperations, kQuestions };

  // Access to the runtime, which cannot be detached meanwhile; false if no runtime is attached. In the child of a fork
  // it is false for operations. Questions are answered by the parent's runtime, as of the fork.
  class Use {
   public:
    explicit Use(Bridge& bridge, For what = For::kOperations);
    explicit operator bool() const { return runtime_ != nullptr; }
    const hc_api& api() const { return *api_; }
    hc_runtime* runtime() const { return runtime_; }
    // Number of the session among the process's sessions.
    uint64_t session() const { return session_; }

   private:
    std::shared_lock<std::shared_mutex> lock_;
    const hc_api* api_ = nullptr;
    hc_runtime* runtime_ = nullptr;
    uint64_t session_ = 0;
  };

 private:
  std::shared_mutex mutex_;
  const hc_api* api_ = nullptr;    // guarded by mutex_
  hc_runtime* runtime_ = nullptr;  // guarded by mutex_
  uint64_t session_ = 0;           // guarded by mutex_
  std::atomic<bool> forked_{false};
};

}  // namespace horocache::tensorflow
