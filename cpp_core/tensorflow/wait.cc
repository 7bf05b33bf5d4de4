// HorocacheWait, HorocacheWaitResults and HorocacheWaitJoin: block one of TensorFlow's threads until operations are
// done.
//
// Note [No waiting kernel starves another rank]: waiting kernels may occupy all of TensorFlow's threads. A waiting
// kernel runs after all enqueueing kernels that come before it in the program, see order.py. So the earliest operation
// that a blocked rank waits for has been submitted by all blocked ranks, and completes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "tensorflow/interrupt.h"
#include "tensorflow/kernel.h"
#include "tensorflow/kernels.h"

namespace horocache::tensorflow {
namespace {

using Clock = std::chrono::steady_clock;

// How long several kernels may wait at the same time before a warning is logged.
constexpr std::chrono::seconds kPatience(10);

struct Wait {
  int num_handles = 1;
  bool alone = false;  // true if nothing else of this rank runs meanwhile

  Wait(Attributes&& attributes, bool several) {
    alone = attributes.Flag("alone");
    if (several) num_handles = static_cast<int>(attributes.Integer("num_handles"));
  }
};

// Counts the kernels that wait now, each of which blocks one of TensorFlow's threads. Waiting kernels of one function
// run one after the other.
class Blocked {
 public:
  Blocked() { ++count_; }
  ~Blocked() { --count_; }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

  // Called from time to time while the kernel waits.
  void LookAround() {
    most_ = std::max(most_, count_.load());
    if (Clock::now() < look_again_) return;
    look_again_ += kPatience;
    WarnIfSeveral();
  }
  void WarnIfSeveral() const {
    if (most_ < 2 || warned_.exchange(true)) return;
    Logger().Warning(
        std::to_string(most_) +
        " of TensorFlow's threads wait for other ranks, as functions are called from several threads of the program, "
        "or a session runs several operations. If no thread is left, operations that the other ranks wait for are "
        "never submitted. "
        "Give TensorFlow more threads: tf.config.threading.set_inter_op_parallelism_threads(), or "
        "inter_op_parallelism_threads of a session's ConfigProto.");
  }

 private:
  static inline std::atomic<int> count_{0};
  static inline std::atomic<bool> warned_{false};
  int most_ = 1;
  Clock::time_point look_again_ = Clock::now() + kPatience;
};

// An operation that a kernel waits for. The destructor consumes it, or abandons it if it is not done.
class Awaited {
 public:
  Awaited(const Bridge::Use& use, std::unique_ptr<Flight> flight) : use_(use), flight_(std::move(flight)) {
    known_ = use_ && flight_ != nullptr && flight_->session == use_.session();
  }
  ~Awaited() {
    if (!known_) return;
    if (use_.api().poll(use_.runtime(), flight_->handle) == 0) {
      Flights::Get().Abandon(std::move(flight_));
    } else {
      use_.api().consume(use_.runtime(), flight_->handle);
    }
  }
  Awaited(const Awaited&) = delete;
  Awaited& operator=(const Awaited&) = delete;

  int64_t handle() const { return flight_->handle; }

  // Waits for the operation and sets the call's status. The core ends every operation within its stall limit.
  void Wait(bool alone, Call* call) {
    if (known_ && !call->interrupted()) known_ = Block(alone, call) >= 0;
    if (!call->ok()) return;
    if (!known_) {
      call->status().Set(kAborted, "horocache has been shut down while operations were in flight.");
      return;
    }
    hc_error error;
    const int code = use_.api().outcome(use_.runtime(), flight_->handle, &error);
    if (code != HC_OK) call->status().Set(code, error);
  }

 private:
  // Returns the result of hc_wait.
  int Block(bool alone, Call* call) {
    const auto wait = use_.api().wait;
    if (alone) return wait(use_.runtime(), flight_->handle, HC_WAIT_FOR_GOOD, &GoOn, call);
    Blocked blocked;
    const int done = wait(use_.runtime(), flight_->handle, HC_WAIT_FOR_GOOD_IN_POOL, &LookAround, &blocked);
    if (done > 0 && use_.api().outcome(use_.runtime(), flight_->handle, nullptr) == HC_STALL) blocked.WarnIfSeveral();
    return done;
  }

  static int LookAround(void* blocked) {
    static_cast<Blocked*>(blocked)->LookAround();
    return 1;
  }

  static int GoOn(void* call) {
    if (!InterruptPython()) return 1;
    static_cast<Call*>(call)->status().Set(kCancelled, "interrupted while waiting.");
    return 0;
  }

  const Bridge::Use& use_;
  std::unique_ptr<Flight> flight_;
  bool known_ = false;
};

std::unique_ptr<Flight> FlightOf(int input, Call* call) {
  const OwnedTensor number = call->Input(input);
  return number == nullptr ? nullptr : Flights::Get().Take(*static_cast<int64_t*>(Tf().TensorData(number.get())));
}

void* CreateWait(TF_OpKernelConstruction* construction) { return new Wait(Attributes(construction), true); }
void* CreateWaitOne(TF_OpKernelConstruction* construction) { return new Wait(Attributes(construction), false); }
void DeleteWait(void* self) { delete static_cast<Wait*>(self); }

// Waits for all operations, also after a failure, but not after an interrupt. Then outputs the tensors that the
// enqueueing kernels allocated.
void ComputeWait(void* kernel, TF_OpKernelContext* context) {
  const Wait& self = *static_cast<Wait*>(kernel);
  Call call(context);
  const Bridge::Use use(Bridge::Get());
  for (int i = 0; i < self.num_handles; ++i) {
    Awaited operation(use, FlightOf(i, &call));
    operation.Wait(self.alone, &call);
  }
  for (int i = self.num_handles; i < call.num_inputs() && call.ok(); ++i) {
    const OwnedTensor tensor = call.Input(i);
    if (call.ok()) call.SetOutput(i - self.num_handles, tensor);
  }
}

void PassNumber(int number, int output, Call* call) {
  const OwnedTensor scalar = call->Allocate(output, kInt32, {}, sizeof(int32_t));
  if (call->ok()) *static_cast<int32_t*>(Tf().TensorData(scalar.get())) = number;
}

void FreeResult(void* data, size_t, void*) { std::free(data); }

// Outputs a result and its received rows. TensorFlow takes over the memory of the result.
void PassResult(const Bridge::Use& use, int64_t handle, int index, int count, Call* call) {
  hc_tensor result;
  const int64_t* rows = nullptr;
  int num_rows = 0;
  use.api().result(use.runtime(), handle, index, &result, &rows, &num_rows);
  const std::vector<int64_t> shape(result.shape, result.shape + result.ndim);
  const OwnedTensor received = call->Allocate(count + index, kInt32, {num_rows}, sizeof(int32_t) * num_rows);
  if (!call->ok()) return;
  auto* const out = static_cast<int32_t*>(Tf().TensorData(received.get()));
  for (int i = 0; i < num_rows; ++i) {
    if (rows[i] > std::numeric_limits<int32_t>::max()) {
      call->status().Set(kUnimplemented, std::to_string(rows[i]) + " rows came from rank " + std::to_string(i) +
                                             " of the set; more than 2147483647 cannot be counted here. Send less at "
                                             "a time.");
      return;
    }
    out[i] = static_cast<int32_t>(rows[i]);
  }
  size_t bytes = DTypeBytes(static_cast<DType>(result.dtype));
  for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  void* const data = use.api().take_result(use.runtime(), handle, index);
  const OwnedTensor tensor(
      Tf().NewTensor(ToTensorflow(result.dtype), shape.data(), result.ndim, data, bytes, &FreeResult, nullptr));
  call->SetOutput(index, tensor);
}

void ComputeWaitResults(void* kernel, TF_OpKernelContext* context) {
  const Wait& self = *static_cast<Wait*>(kernel);
  Call call(context);
  const Bridge::Use use(Bridge::Get());
  Awaited operation(use, FlightOf(0, &call));
  operation.Wait(self.alone, &call);
  const int count = call.num_inputs() - 1;
  if (call.ok()) PassNumber(use.api().divisor(use.runtime(), operation.handle(), 0), 2 * count, &call);
  for (int i = 0; i < count && call.ok(); ++i) PassResult(use, operation.handle(), i, count, &call);
}

void ComputeWaitJoin(void* kernel, TF_OpKernelContext* context) {
  const Wait& self = *static_cast<Wait*>(kernel);
  Call call(context);
  const Bridge::Use use(Bridge::Get());
  Awaited operation(use, FlightOf(0, &call));
  operation.Wait(self.alone, &call);
  if (call.ok()) PassNumber(use.api().last_joined(use.runtime(), operation.handle()), 0, &call);
}

}  // namespace

const KernelFunctions kWait = {&CreateWait, &ComputeWait, &DeleteWait};
const KernelFunctions kWaitResults = {&CreateWaitOne, &ComputeWaitResults, &DeleteWait};
const KernelFunctions kWaitJoin = {&CreateWaitOne, &ComputeWaitJoin, &DeleteWait};

}  // namespace horocache::tensorflow
