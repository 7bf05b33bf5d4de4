// The runtime that this process's kernels submit to.
//
// TensorFlow calls kernels from its own threads and hands them nothing of ours, so there is one bridge in a process:
// Python attaches the session's runtime when it starts, and detaches it when it ends.
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
  // Returns when no kernel uses the runtime any more. It has been stopped before, so none waits for other ranks.
  void Detach();
  // In the child of a fork, where threads that held the lock may be missing.
  void ForkedChild() { forked_.store(true); }

  enum class For { kOperations, kQuestions };

  // Keeps the runtime from being detached while it lives; false if there is none. In the child of a fork there is none
  // for operations; questions are answered by the parent's, as when it forked.
  class Use {
   public:
    explicit Use(Bridge& bridge, For what = For::kOperations);
    explicit operator bool() const { return runtime_ != nullptr; }
    const hc_api& api() const { return *api_; }
    hc_runtime* runtime() const { return runtime_; }
    // Which of the process's sessions it is.
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
