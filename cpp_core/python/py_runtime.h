// One rank's runtime behind Python objects: keeps tensors alive while the core works on them, and turns Status into
// exceptions.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capi/wrap.h"
#include "python/errors.h"
#include "python/tensor_caster.h"
#include "runtime/runtime.h"

namespace horocache::python {

using Texts = std::map<std::string, std::string>;

// A tensor that the core allocated, exported without a copy.
struct PyResult {
  runtime::Result result;
  std::shared_ptr<std::byte> memory = nullptr;  // of Runtime::Allocate; null: the result's own
  std::byte* data() const { return memory != nullptr ? memory.get() : result.bytes.get(); }
};

// What an allreduce in place says besides its tensors.
struct InPlaceCall {
  PyObject* name = nullptr;     // borrowed
  PyObject* backend = nullptr;  // borrowed
  int reduce_op = 0;
  double prescale = 1.0, postscale = 1.0;
  bool wait_follows = false;
  uint32_t process_set = 0;
  int32_t priority = 0;
  bool plain = false;          // the tensors are known to have their values in their memory
  int64_t first_ready_ns = 0;  // as runtime::Operation has it
};

class Members;  // of a group
struct GradientBucket;

// Of bytes that horocache.lang has packed.
std::shared_ptr<const program::Library> DecodeOrThrow(std::string_view programs);

// The GIL is held in every call. See _core.pyi for what the methods mean.
class PyRuntime {
 public:
  PyRuntime(const Texts& arguments, uint32_t epoch, std::vector<std::vector<int>> process_sets, uint64_t communicator,
            std::vector<int> ranks, std::string_view programs);
  explicit PyRuntime(runtime::RuntimeConfig config) { Start(std::move(config)); }
  ~PyRuntime();

  void Stop();
  bool StopWithProcess();
  void ForkedChild();

  int64_t Submit(int op, const pybind11::sequence& inputs, const pybind11::object& outputs,
                 const pybind11::object& name, const pybind11::object& names, int reduce_op, double prescale,
                 double postscale, int root, const pybind11::object& splits, int process_set,
                 const std::string& backend, const std::string& layers, bool group, bool wait_follows,
                 const pybind11::object& send_starts, const pybind11::object& receive_rows,
                 const pybind11::object& receive_starts, int32_t priority, const std::string& divide_by, int32_t tag,
                 int64_t first_ready_ns);
  // -1 if the tensor, the name or the backend's needs a closer look than this takes.
  int64_t AllreduceInPlace(PyObject* tensor, const InPlaceCall& call);
  // The same for each tensor of a list from that on for which there is no handle yet; appends theirs. False if it came
  // to one that needs a closer look: then there is one handle for each before it. Tensors are of exactly this type.
  bool AllreduceEachInPlace(PyObject* tensors, PyObject* names, PyObject* type, InPlaceCall call, PyObject* handles);
  // One operation for all; `call.name` is as ranks compare it, and so are `names`, or None. -1 as above.
  int64_t AllreduceGroupInPlace(PyObject* tensors, PyObject* names, PyObject* type, const InPlaceCall& call);
  // Gradients that travel alone, all in place and each under its own name; a list of GradientSlots. Returns those that
  // need a closer look.
  pybind11::list SubmitGradients(const pybind11::list& slots, int reduce_op, double prescale, double postscale,
                                 uint32_t process_set);
  // The gradients of a GradientBucket as one operation; `plain`: they are what gather_gradients() found. None if it has
  // to go the general way.
  pybind11::object SubmitGradientGroup(pybind11::handle bucket, pybind11::handle tensors, pybind11::handle name,
                                       pybind11::handle names, pybind11::handle type, bool plain, int reduce_op,
                                       double prescale, double postscale, uint32_t process_set);
  // Waits for what was submitted, and consumes it: a list of GradientBuckets. Returns those that need a closer look:
  // that went another way, have failed, or whose gradients were changed meanwhile.
  pybind11::list FinishGradients(const pybind11::list& buckets);
  pybind11::object Empty(std::vector<int64_t> shape, const std::string& dtype);
  bool IsShared(const pybind11::object& tensor);
  bool Poll(int64_t handle) { return IsDone(*FindOrThrow(handle)); }
  pybind11::object Wait(int64_t handle, double timeout_s);
  // The same for many, up to the first that fails, is unknown or is to be finished by something else: `pending` has
  // (what finishes it, what for) of each. Takes those that ended well out of it, and appends what for to `done`.
  void WaitEach(const pybind11::tuple& handles, PyObject* pending, PyObject* finish, PyObject* done, double timeout_s);

  // Process sets that come and go; see runtime::Runtime.
  int64_t ProposeSet(uint32_t number, std::vector<int> ranks);
  void DeclareSet(uint32_t number, std::vector<int> ranks);
  void MeetSet(uint32_t number);
  void EnterSet(uint32_t number);
  int64_t ProposeRemoval(uint32_t number);
  void LeaveSet(uint32_t number);
  void DropSet(uint32_t number);

  void StartTimeline(const std::string& path, bool mark_rounds);
  void StopTimeline();
  void WatchStacks(int signal, int file, int ask, int answer, const std::string& own_folder) {
    ThrowIfError(Get().WatchStacks({file, ask, answer, signal, &PyGILState_Check}, own_folder));
  }

  // Throws in a child of fork.
  runtime::Runtime& Get();
  // What can be asked in a child of fork, too, and is answered as in the parent; there nothing is alive.
  const runtime::Runtime& Known() const { return runtime_ != nullptr ? *runtime_ : *parents_; }
  // Addresses of a hc_api and of this as its hc_runtime.
  std::pair<uintptr_t, uintptr_t> CApi();

 private:
  void Start(runtime::RuntimeConfig config);
  runtime::Operation* FindOrThrow(int64_t handle);
  // Calls `call` without the GIL; `go_on` runs handlers of signals. Throws what they raise, else the outcome.
  using PatientCall = std::function<Status(const std::function<bool()>& go_on)>;
  void CallPatiently(const PatientCall& call);
  void WaitUntilDone(runtime::Operation* operation, int64_t handle, double timeout_s);
  void Fill(runtime::Operation* operation, int op, const pybind11::sequence& inputs, const pybind11::object& outputs,
            const pybind11::object& name, const pybind11::object& names, bool group);
  void Describe(size_t index, runtime::Operation* operation);  // as view_ says
  void FillTensor(runtime::Operation* operation, size_t index, const pybind11::object& input,
                  const pybind11::object& output);
  bool FillGroup(runtime::Operation* operation, const Members& members, PyObject* type, const InPlaceCall& call);
  void FillMember(runtime::Operation* operation, size_t index, bool* same);
  bool ReadInPlace(PyObject* tensor, const InPlaceCall& call);  // into view_
  // Waits; null if there is no such operation, or another thread has consumed it.
  runtime::Operation* Await(int64_t handle, double timeout_s);
  bool TakeIfGood(PyObject* pending, PyObject* number, const pybind11::object& item, double timeout_s);
  bool FinishGradient(GradientBucket* bucket);
  // Takes over a reference to `owner`, which keeps the tensors alive.
  int64_t SubmitOwned(runtime::Operation* operation, PyObject* owner, int reduce_op, double prescale, double postscale,
                      bool wait_follows);
  pybind11::object Consume(runtime::Operation* operation);
  void DropFinishedOwners();

  std::unique_ptr<runtime::Runtime> runtime_;
  const runtime::Runtime* parents_ = nullptr;  // in a child of fork: never destroyed
  hc_runtime as_c_ = {};
  TensorCaster caster_;
  TensorView view_;
  std::string text_;           // of the call under way
  std::vector<void*> owners_;  // empty, with capacity
};

}  // namespace horocache::python
