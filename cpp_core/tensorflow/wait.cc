// HorocacheWait, HorocacheWaitResults and HorocacheWaitJoin: block one of TensorFlow's threads until operations are
// over.
//
// Note [No waiting kernel starves another rank]: the kernels that wait may take all threads that TensorFlow has. A
// waiting kernel runs after all enqueueing kernels that come before it in the program, see order.py; so of the
// operations that ranks are blocked in, the earliest has been submitted by all blocked ranks, and comes to its end.
#include <cstdlib>
#include <memory>
#include <utility>

#include "tensorflow/kernel.h"
#include "tensorflow/kernels.h"

namespace horocache::tensorflow {
namespace {

constexpr double kSliceS = 60.0;  // the core ends every operation in time; a slice has no meaning of its own

struct Wait {
  int num_order = 0;  // resources that only order this kernel, its first inputs
  int num_handles = 1;
  bool alone = false;  // nothing else of this rank goes on meanwhile

  Wait(Attributes&& attributes, bool several) {
    num_order = static_cast<int>(attributes.Integer("num_order"));
    alone = attributes.Flag("alone");
    if (several) num_handles = static_cast<int>(attributes.Integer("num_handles"));
  }
};

// An operation that a kernel waits for; gives it back in the end.
class Awaited {
 public:
  Awaited(const Bridge::Use& use, std::unique_ptr<Flight> flight) : use_(use), flight_(std::move(flight)) {
    known_ = use_ && flight_ != nullptr && flight_->session == use_.session();
  }
  ~Awaited() {
    if (known_) use_.api().consume(use_.runtime(), flight_->handle);
  }
  Awaited(const Awaited&) = delete;
  Awaited& operator=(const Awaited&) = delete;

  int64_t handle() const { return flight_->handle; }

  void Wait(bool alone, Call* call) {
    while (known_) {
      const int done = use_.api().wait(use_.runtime(), flight_->handle, kSliceS, alone ? 1 : 0);
      if (done < 0) known_ = false;
      if (done > 0) break;
    }
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

// Waits for all, whatever becomes of the first; then passes on what the enqueueing kernels allocated.
void ComputeWait(void* kernel, TF_OpKernelContext* context) {
  const Wait& self = *static_cast<Wait*>(kernel);
  Call call(context);
  const Bridge::Use use(Bridge::Get());
  const int first_tensor = self.num_order + self.num_handles;
  for (int i = self.num_order; i < first_tensor; ++i) {
    Awaited operation(use, FlightOf(i, &call));
    operation.Wait(self.alone, &call);
  }
  for (int i = first_tensor; i < call.num_inputs() && call.ok(); ++i) {
    const OwnedTensor tensor = call.Input(i);
    if (call.ok()) call.SetOutput(i - first_tensor, tensor);
  }
}

void PassNumber(int number, int output, Call* call) {
  const OwnedTensor scalar = call->Allocate(output, kInt32, {}, sizeof(int32_t));
  if (call->ok()) *static_cast<int32_t*>(Tf().TensorData(scalar.get())) = number;
}

void FreeResult(void* data, size_t, void*) { std::free(data); }

// The memory of a result becomes TensorFlow's.
void PassResult(const Bridge::Use& use, int64_t handle, int index, int count, Call* call) {
  hc_tensor result;
  const int64_t* rows = nullptr;
  int num_rows = 0;
  use.api().result(use.runtime(), handle, index, &result, &rows, &num_rows);
  const std::vector<int64_t> shape(result.shape, result.shape + result.ndim);
  const OwnedTensor received = call->Allocate(count + index, kInt32, {num_rows}, sizeof(int32_t) * num_rows);
  if (!call->ok()) return;
  auto* const out = static_cast<int32_t*>(Tf().TensorData(received.get()));
  for (int i = 0; i < num_rows; ++i) out[i] = static_cast<int32_t>(rows[i]);
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
  Awaited operation(use, FlightOf(self.num_order, &call));
  operation.Wait(self.alone, &call);
  const int count = call.num_inputs() - self.num_order - 1;
  if (call.ok()) PassNumber(use.api().divisor(use.runtime(), operation.handle(), 0), 2 * count, &call);
  for (int i = 0; i < count && call.ok(); ++i) PassResult(use, operation.handle(), i, count, &call);
}

void ComputeWaitJoin(void* kernel, TF_OpKernelContext* context) {
  const Wait& self = *static_cast<Wait*>(kernel);
  Call call(context);
  const Bridge::Use use(Bridge::Get());
  Awaited operation(use, FlightOf(self.num_order, &call));
  operation.Wait(self.alone, &call);
  if (call.ok()) PassNumber(use.api().last_joined(use.runtime(), operation.handle()), 0, &call);
}

}  // namespace

const KernelFunctions kWait = {&CreateWait, &ComputeWait, &DeleteWait};
const KernelFunctions kWaitResults = {&CreateWaitOne, &ComputeWaitResults, &DeleteWait};
const KernelFunctions kWaitJoin = {&CreateWaitOne, &ComputeWaitJoin, &DeleteWait};

}  // namespace horocache::tensorflow
