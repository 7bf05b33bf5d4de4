// The operations that kernels have submitted and no kernel has waited for yet, with the tensors that they work on.
//
// An enqueueing kernel outputs a tensor with the number of its flight. TensorFlow deletes that tensor when the waiting
// kernel has run, or when the step failed before that. In the second case the flight is abandoned, and its tensors are
// released once the operation is done.
//
// Threads: any. One object per process, see Bridge.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "tensorflow/bridge.h"
#include "tensorflow/tf_api.h"

namespace horocache::tensorflow {

struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { Tf().DeleteTensor(tensor); }
};
using OwnedTensor = std::unique_ptr<TF_Tensor, TensorDeleter>;

struct Flight {
  uint64_t session = 0;
  int64_t handle = -1;  // of hc_submit
  std::vector<OwnedTensor> kept;
};

class Flights {
 public:
  static Flights& Get();

  // Returns a tensor that contains the flight's number.
  OwnedTensor Add(std::unique_ptr<Flight> flight) HC_EXCLUDES(mutex_);
  // Returns null if the flight was taken before.
  std::unique_ptr<Flight> Take(int64_t number) HC_EXCLUDES(mutex_);
  // Keeps the tensors of an operation without a waiter until the operation is done.
  void Abandon(std::unique_ptr<Flight> flight) HC_EXCLUDES(mutex_);
  // Releases abandoned flights whose operations are done, and those of earlier sessions.
  void Reap(const Bridge::Use& use) HC_EXCLUDES(mutex_);
  // Releases all abandoned flights. The runtime must have been stopped, so that all operations are done.
  void Clear() HC_EXCLUDES(mutex_);
  // From now on, deleted tensors and their flights are leaked: in the child of a fork, where a thread that held the
  // lock may be missing, and in a process that ends while operations write to their tensors.
  void KeepAll() { keeps_all_.store(true); }

 private:
  static void Dropped(void* number, size_t bytes, void* flights);

  std::atomic<bool> keeps_all_{false};
  Mutex mutex_;
  int64_t next_ HC_GUARDED_BY(mutex_) = 1;
  std::unordered_map<int64_t, std::unique_ptr<Flight>> flying_ HC_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Flight>> abandoned_ HC_GUARDED_BY(mutex_);
};

}  // namespace horocache::tensorflow
