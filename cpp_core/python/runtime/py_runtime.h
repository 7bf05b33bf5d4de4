// One rank's runtime as a Python object: keeps tensors alive while the core works on them, and converts Status to
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
#include "dag/engine.h"
#include "python/errors.h"
#include "python/tensor_caster.h"
#include "runtime/runtime.h"

namespace horocache::python {

using Texts = std::map<std::string, std::string>;

// A tensor that the core allocated. It is exported without a copy, or copied by CopyTo if it is on a device.
struct PyResult {
  runtime::Result result;
  std::shared_ptr<std::byte> memory = nullptr;  // from Runtime::Allocate; null: result.bytes has the elements
  int cuda_device = -1;                         // the device of the operation's tensors; -1: they are on the CPU
  std::byte* data() const { return memory != nullptr ? memory.get() : result.bytes.get(); }
};

// The arguments of an in-place allreduce besides its tensors.
struct InPlaceCall {
  PyObject* name = nullptr;     // borrowed
  PyObject* backend = nullptr;  // borrowed
  int reduce_op = 0;
  double prescale = 1.0, postscale = 1.0;
  bool wait_follows = false;
  uint32_t process_set = 0;
  int32_t priority = 0;
  bool full_name = false;      // true if `name` is what the ranks compare: the operation is not put before it
  bool plain = false;          // true if the tensors are known to be not negated: their memory has their values
  int64_t first_ready_ns = 0;  // see runtime::Operation
};

class Members;  // of a group
struct GradientBucket;

// The names of the fields of a horocache.base.request.Request, in the order in which PyRuntime::Submit reads them.
std::vector<std::string> RequestFields();

// Decodes programs that horocache.lang has packed.
std::shared_ptr<const program::Library> DecodeOrThrow(std::string_view programs);

// A backend that the program implements: its name, its operations, and the element types that it moves and reduces.
using UserBackend =
    std::tuple<std::string, std::vector<std::string>, std::vector<std::string>, std::vector<std::string>>;

// All calls require the GIL. _core.pyi documents the methods.
//
// The in-place and gradient functions are a fast path for the usual case. They report the cases that they do not
// handle. For those the caller takes the general path (Submit and Wait), which makes a copy or raises the error.
class PyRuntime {
 public:
  PyRuntime(const Texts& arguments, uint32_t epoch, std::vector<std::vector<int>> process_sets, uint64_t communicator,
            std::vector<int> ranks, std::string_view programs, std::string tuning,
            const std::vector<UserBackend>& backends);
  explicit PyRuntime(runtime::RuntimeConfig config) { Start(std::move(config)); }
  ~PyRuntime();

  void Stop();
  bool StopWithProcess();
  void ForkedChild();

  // Submits an operation; `request` is a horocache.base.request.Request. Returns its handle.
  int64_t Submit(const pybind11::tuple& request);
  // Returns a handle, or -1 if the tensor, its name or the backend's name needs the general path.
  int64_t AllreduceInPlace(PyObject* tensor, const InPlaceCall& call);
  // The same for each tensor of a list, beginning after as many tensors as `handles` has entries; appends their
  // handles. Returns false at the first tensor that needs the general path or is not of exactly this type; then there
  // is one handle for each tensor before it.
  bool AllreduceEachInPlace(PyObject* tensors, PyObject* names, PyObject* type, InPlaceCall call, PyObject* handles);
  // Submits one operation for all tensors. `call.name` and `names` (which may be None) are names as the ranks compare
  // them. Returns a handle, or -1 if the group needs the general path.
  int64_t AllreduceGroupInPlace(PyObject* tensors, PyObject* names, PyObject* type, const InPlaceCall& call);
  // Submits gradients without a group in place, each under its own name. `slots` is a list of GradientSlots. Returns
  // those that need the general path.
  pybind11::list SubmitGradients(const pybind11::list& slots, int reduce_op, double prescale, double postscale,
                                 uint32_t process_set);
  // Submits the gradients of a GradientBucket as one operation. `plain`: true if the tensors are the ones that
  // gather_gradients() returned. Returns a handle, or None if the bucket needs the general path.
  pybind11::object SubmitGradientGroup(pybind11::handle bucket, pybind11::handle tensors, pybind11::handle name,
                                       pybind11::handle names, pybind11::handle type, bool plain, int reduce_op,
                                       double prescale, double postscale, uint32_t process_set);
  // Waits for the operations of these GradientBuckets and consumes them. Returns the buckets that need the general
  // path: they were not submitted as they are, have failed, or had gradients changed meanwhile.
  pybind11::list FinishGradients(const pybind11::list& buckets);
  pybind11::object Empty(std::vector<int64_t> shape, const std::string& dtype);
  bool IsShared(const pybind11::object& tensor);
  bool Poll(int64_t handle) { return Reached(*FindOrThrow(handle), runtime::OperationState::kLaunched); }
  pybind11::object Wait(int64_t handle, double timeout_s, bool block);
  // Ends an operation of an engine when that of the handle is done. With `consume`, the handle, which has no results,
  // is consumed; else the engine's operation runs again then, to consume it. See dag/engine.h.
  void Follow(int64_t handle, const dag::Engine& engine, uint64_t operation, bool consume);
  // Waits until the copies of results on a device, which CopyTo has queued, have been made.
  void AwaitCopies(const pybind11::list& results, double timeout_s);
  // Waits for each handle and consumes it, up to the first one that fails, is unknown or has another finisher than
  // `finish`. `pending` maps a handle to (finisher, argument). Removes the handles that succeed from `pending` and
  // appends their arguments to `done`.
  void WaitEach(const pybind11::tuple& handles, PyObject* pending, PyObject* finish, PyObject* done, double timeout_s);

  // Adding and removing process sets; see runtime::Runtime.
  int64_t ProposeSet(uint32_t number, std::vector<int> ranks);
  void DeclareSet(uint32_t number, std::vector<int> ranks);
  void ConnectSet(uint32_t number);
  void OpenSet(uint32_t number);
  int64_t ProposeRemoval(uint32_t number);
  void LeaveSet(uint32_t number);
  void DropSet(uint32_t number);

  void StartTimeline(const std::string& path, bool mark_rounds);
  void StopTimeline();
  void WatchStacks(int signal, int file, int ask, int answer, const std::string& own_folder) {
    ThrowIfError(Get().WatchStacks({file, ask, answer, signal, &PyGILState_Check}, own_folder));
  }

  // Throws in the child of a fork.
  runtime::Runtime& Get();
  // The runtime for queries that are allowed in the child of a fork, too. They are answered as in the parent, except
  // that the child's runtime is not alive.
  const runtime::Runtime& Known() const { return runtime_ != nullptr ? *runtime_ : *parents_; }
  // Returns the addresses of the hc_api and of this runtime's hc_runtime.
  std::pair<uintptr_t, uintptr_t> CApi();

 private:
  void Start(runtime::RuntimeConfig config);
  runtime::Operation* FindOrThrow(int64_t handle);
  // Calls `call` without the GIL. `go_on` runs Python's signal handlers; it returns false if one raised. Throws the
  // handler's exception, else the exception for the status that `call` returned.
  using PatientCall = std::function<Status(const std::function<bool()>& go_on)>;
  void CallPatiently(const PatientCall& call);
  void WaitUntil(runtime::OperationState until, runtime::Operation* operation, int64_t handle, double timeout_s,
                 int64_t deadline_ns);
  bool OrderBehind(const runtime::Operation& operation);
  void Fill(runtime::Operation* operation, int op, const pybind11::sequence& inputs, const pybind11::object& outputs,
            const pybind11::object& name, const pybind11::object& names, bool group, Place* place);
  void Describe(size_t index, runtime::Operation* operation);  // from view_
  void FillTensor(runtime::Operation* operation, size_t index, const pybind11::object& input,
                  const pybind11::object& output, Place* place);
  void CheckPlace(const Place& place, const std::string& which) const;  // of view_
  void AwaitStream(runtime::Operation* operation, const pybind11::sequence& inputs, const Place& place);
  bool FillGroup(runtime::Operation* operation, const Members& members, PyObject* type, const InPlaceCall& call);
  void FillMember(runtime::Operation* operation, size_t index, bool* same);
  bool ReadInPlace(PyObject* tensor, const InPlaceCall& call);  // into view_
  // Waits until the operation is done. With `block` false, until it is launched is enough, if the caller's current
  // stream can be made to wait for its result. Returns null if the handle is unknown or another thread has consumed the
  // operation.
  runtime::Operation* Await(int64_t handle, double timeout_s, bool block);
  bool ConsumeIfGood(runtime::Operation* operation);
  bool TakeIfGood(PyObject* pending, PyObject* number, const pybind11::object& item, double timeout_s);
  bool FinishGradient(GradientBucket* bucket);
  // Takes over a reference to `owner`, which keeps the tensors alive.
  int64_t SubmitOwned(runtime::Operation* operation, PyObject* owner, int reduce_op, double prescale, double postscale,
                      bool wait_follows);
  pybind11::object Consume(runtime::Operation* operation);
  void DropFinishedOwners();
  static void AskToDropOwners();
  static int DropOwnersOfAll(void*);

  std::unique_ptr<runtime::Runtime> runtime_;
  const runtime::Runtime* parents_ = nullptr;  // in the child of a fork: the parent's runtime, never destroyed
  hc_runtime as_c_ = {};
  TensorCaster caster_;
  TensorView view_;
  std::string text_;           // scratch memory of the current call
  std::vector<void*> owners_;  // empty between calls; kept for its capacity
};

}  // namespace horocache::python
