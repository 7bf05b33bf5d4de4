// The operations that kernels have submitted and nobody has waited for yet, and the tensors that they work on.
//
// The output of an enqueueing kernel is a tensor with the number of its flight. TensorFlow drops that tensor when the
// waiting kernel has run, or when the step failed before it could: the flight is abandoned then, and its tensors are
// given back once the operation is over.
//
// Threads: any. One in a process, see Bridge.
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

  // The tensor for a flight's number.
  OwnedTensor Add(std::unique_ptr<Flight> flight) HC_EXCLUDES(mutex_);
  // Null if it was taken before.
  std::unique_ptr<Flight> Take(int64_t number) HC_EXCLUDES(mutex_);
  // Keeps what an operation works on that nobody waits for any more.
  void Abandon(std::unique_ptr<Flight> flight) HC_EXCLUDES(mutex_);
  // Gives back what abandoned operations of `use`'s session that are over have kept.
  void Reap(const Bridge::Use& use) HC_EXCLUDES(mutex_);
  // All flights' operations are over, as their runtime has been stopped.
  void Clear() HC_EXCLUDES(mutex_);
  // From now on what is dropped stays as it is: in the child of a fork, where a thread that held the lock may be
  // missing, and in a process that ends while operations write to their tensors.
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
