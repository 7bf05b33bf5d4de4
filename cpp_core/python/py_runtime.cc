#include "python/py_runtime.h"

#include <pybind11/stl.h>
#include <unistd.h>

#include <functional>

#include "base/clock.h"
#include "base/environment.h"
#include "base/text.h"
#include "capi/hc.h"
#include "control/signature.h"
#include "python/errors.h"
#include "runtime/submission.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

using runtime::Operation;
using runtime::TensorArgument;

// Bytes of a str (lone surrogates as the bytes they escape) or of bytes.
void AssignText(py::handle text, std::string* out) {
  if (PyBytes_Check(text.ptr())) {
    out->assign(PyBytes_AS_STRING(text.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(text.ptr())));
    return;
  }
  Py_ssize_t length = 0;
  if (const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &length); bytes != nullptr) {
    out->assign(bytes, static_cast<size_t>(length));
    return;
  }
  PyErr_Clear();  // not UTF-8: the surrogateescape form of what the user has
  const py::object encoded =
      py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape"));
  if (!encoded) throw py::error_already_set();
  AssignText(encoded, out);
}

void AssignList(const py::object& numbers, std::vector<int64_t>* out) {
  out->clear();
  if (numbers.is_none()) return;
  for (const py::handle number : numbers) out->push_back(number.cast<int64_t>());
}

// Takes the GIL back. A daemon thread that finds the interpreter at its end stays here: Python would end the thread in
// the middle of C++.
void RestoreThread(PyThreadState* state) {
#if PY_VERSION_HEX >= 0x030d0000
  const bool at_end = Py_IsFinalizing() != 0;
#else
  const bool at_end = _Py_IsFinalizing() != 0;
#endif
  while (at_end) pause();
  PyEval_RestoreThread(state);
}

}  // namespace

PyRuntime::PyRuntime(const Texts& arguments, uint32_t epoch, std::vector<std::vector<int>> process_sets,
                     uint64_t communicator, std::vector<int> ranks) {
  const auto environment = ReadEnvironment();
  StatusOr<Knobs> knobs = Knobs::Parse(environment, arguments);
  ThrowIfError(knobs.status());
  StatusOr<net::Identity> identity = net::DetectIdentity(*knobs, environment);
  ThrowIfError(identity.status());
  runtime::RuntimeConfig config{std::move(*knobs), std::move(*identity), epoch, HC_VERSION};
  config.process_sets = std::move(process_sets);
  config.communicator = communicator;
  config.ranks = std::move(ranks);
  Start(std::move(config));
}

PyRuntime::~PyRuntime() {
  if (runtime_ == nullptr) return;
  Stop();
  const py::gil_scoped_release released;  // a link may wait for the others' goodbyes
  runtime_.reset();
}

void PyRuntime::Start(runtime::RuntimeConfig config) {
  CallPatiently([&](const auto& go_on) {
    auto started = runtime::Runtime::Start(std::move(config), go_on);
    if (started.ok()) runtime_ = std::move(*started);
    return started.status();
  });
}

void PyRuntime::Stop() {
  {
    const py::gil_scoped_release released;
    runtime_->Stop();
  }
  DropFinishedOwners();
}

// Leaks on purpose: in a forked child there are no threads to join, and nothing of the parent's may be torn down.
void PyRuntime::ForkedChild() {
  runtime_->ForkedChild();
  runtime_.release();  // NOLINT
}

runtime::Runtime& PyRuntime::Get() {
  if (runtime_ == nullptr)
    ThrowIfError(
        {StatusCode::kForked, "horocache cannot be used in a child of fork(); call init() in a new process instead."});
  return *runtime_;
}

std::pair<uintptr_t, uintptr_t> PyRuntime::CApi() {
  as_c_.runtime = &Get();
  return {reinterpret_cast<uintptr_t>(hc_get_api()), reinterpret_cast<uintptr_t>(&as_c_)};
}

Operation* PyRuntime::FindOrThrow(int64_t handle) {
  Operation* operation = Get().Find(handle);
  if (operation == nullptr) {
    PyErr_SetString(PyExc_ValueError,
                    ("Handle " + std::to_string(handle) + " was not created or has been cleared.").c_str());
    throw py::error_already_set();
  }
  return operation;
}

// ---- submission

int64_t PyRuntime::Submit(int op, const py::sequence& inputs, const py::object& outputs, const py::object& name,
                          const py::object& names, int reduce_op, double prescale, double postscale, int root,
                          const py::object& splits, int process_set, const std::string& backend,
                          const std::string& layers, bool group, bool wait_follows, const py::object& send_starts,
                          const py::object& receive_rows, const py::object& receive_starts, int32_t priority,
                          const std::string& divide_by, int32_t tag, int64_t first_ready_ns) {
  runtime::Runtime& runtime = Get();
  DropFinishedOwners();
  StatusOr<wire::DivideBy> divides = wire::ParseDivideBy(divide_by);
  ThrowIfError(divides.status());
  Operation* operation = runtime.NewOperation();
  try {
    AssignList(splits, &operation->rows.splits);
    AssignList(send_starts, &operation->rows.send_starts);
    AssignList(receive_rows, &operation->rows.receive_rows);
    AssignList(receive_starts, &operation->rows.receive_starts);
    Fill(operation, op, inputs, outputs, name, names, group);
  } catch (...) {
    runtime.Recycle(operation);
    throw;
  }
  operation->process_set = static_cast<uint32_t>(process_set);
  operation->tag = tag;
  operation->first_ready_ns = first_ready_ns;
  wire::Signature& signature = operation->request.signature;
  signature.divide_by = *divides;
  signature.root = root;
  signature.priority = priority;
  signature.backend = backend;
  signature.layers = layers;
  PyObject* owner =
      PyTuple_Pack(2, PySequence_Tuple(inputs.ptr()), outputs.is_none() ? Py_None : PySequence_Tuple(outputs.ptr()));
  for (Py_ssize_t i = 0; i < (outputs.is_none() ? 1 : 2); ++i)
    Py_DECREF(PyTuple_GET_ITEM(owner, i));  // the pack holds its own reference
  return SubmitOwned(operation, owner, reduce_op, prescale, postscale, wait_follows);
}

void PyRuntime::Fill(Operation* operation, int op, const py::sequence& inputs, const py::object& outputs,
                     const py::object& name, const py::object& names, bool group) {
  if (op < 0 || op >= wire::kNumOps)
    ThrowIfError({StatusCode::kInvalidArgument, "there is no operation " + std::to_string(op)});
  wire::Signature& signature = operation->request.signature;
  signature.op = static_cast<wire::Op>(op);
  const size_t count = inputs.size();
  signature.tensors.resize(count);
  operation->tensors.resize(count);
  operation->allocate_results = outputs.is_none();
  signature.name.clear();
  if (!name.is_none()) AssignText(name, &signature.name);
  for (size_t i = 0; i < count; ++i) {
    FillTensor(operation, i, inputs[i], outputs.is_none() ? py::object() : py::object(outputs[py::int_(i)]));
    if (names.is_none()) {
      runtime::NameMember(i, group, &signature);
    } else {
      AssignText(names[py::int_(i)], &signature.tensors[i].name);
    }
  }
}

void PyRuntime::Describe(size_t index, Operation* operation) {
  runtime::DescribeTensor(index, view_.dtype, view_.shape, view_.data, operation);
  operation->request.signature.device_class = view_.device_class;
}

void PyRuntime::FillTensor(Operation* operation, size_t index, const py::object& input, const py::object& output) {
  ThrowIfError(caster_.Read(input.ptr(), &view_));
  Describe(index, operation);
  if (!output || output.is_none()) return;
  if (output.ptr() != input.ptr()) ThrowIfError(caster_.Read(output.ptr(), &view_));
  if (!view_.writable)
    ThrowIfError({StatusCode::kInvalidArgument, "output " + std::to_string(index) + " is read-only"});
  ThrowIfError(runtime::SetOutput(index, view_.dtype, view_.count, view_.data, operation));
}

int64_t PyRuntime::SubmitOwned(Operation* operation, PyObject* owner, int reduce_op, double prescale, double postscale,
                               bool wait_follows) {
  wire::Signature& signature = operation->request.signature;
  signature.reduce_op = static_cast<wire::ReduceOp>(reduce_op);
  signature.prescale = prescale;
  signature.postscale = postscale;
  operation->owner = owner;
  if (const Status status = Get().Submit(operation, wait_follows); !status.ok()) {
    Py_DECREF(owner);
    ThrowIfError(status);
  }
  return operation->handle;
}

// ---- completion

py::object PyRuntime::Wait(int64_t handle, double timeout_s) {
  Operation* operation = FindOrThrow(handle);
  if (!IsDone(*operation)) {
    WaitUntilDone(operation, handle, timeout_s);
    operation = FindOrThrow(handle);  // another thread may have consumed it meanwhile
  }
  return Consume(operation);
}

void PyRuntime::WaitUntilDone(Operation* operation, int64_t handle, double timeout_s) {
  const int64_t deadline_ns = timeout_s < 0 ? kNever : DeadlineNs(timeout_s);
  PyThreadState* state = PyEval_SaveThread();
  const auto goes_on = [&] {
    RestoreThread(state);
    // Another thread that waited for it may have consumed it: the record is then somebody else's.
    const bool go_on = PyErr_CheckSignals() == 0 && runtime_->Find(handle) == operation;
    state = PyEval_SaveThread();
    return go_on;
  };
  // By reference: as a value it would be too large for a function to hold without asking for memory.
  const bool done = runtime_->Wait(operation, deadline_ns, timeout_s < 0, std::ref(goes_on));
  RestoreThread(state);
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();  // a signal's handler raised; it may be done by now
  if (done) return;
  FindOrThrow(handle);
  const std::string late = control::Describe(operation->request.signature) + " (handle " + std::to_string(handle) +
                           ") is not done on rank " + std::to_string(runtime_->identity().rank) + " after " +
                           SecondsText(static_cast<int64_t>(timeout_s * kNsPerS));
  PyErr_SetString(PyExc_TimeoutError, late.c_str());
  throw py::error_already_set();
}

py::object PyRuntime::Consume(Operation* operation) {
  // Dropped last: a finalizer may come back here.
  const auto owner =
      py::reinterpret_steal<py::object>(static_cast<PyObject*>(std::exchange(operation->owner, nullptr)));
  const Status status = operation->status;
  const wire::Op op = operation->request.signature.op;
  const int32_t last_joined = operation->last_joined;
  const bool allocated = operation->allocate_results && op != wire::Op::kBarrier;
  std::vector<runtime::Result> results = std::move(operation->results);
  Get().Recycle(operation);
  ThrowIfError(status);
  if (op == wire::Op::kJoin) return py::int_(last_joined);
  if (!allocated) return py::none();
  py::list out;
  for (runtime::Result& result : results) out.append(py::cast(PyResult{std::move(result)}));
  return out;
}

int64_t PyRuntime::ProposeSet(uint32_t number, std::vector<int> ranks) {
  int64_t handle = -1;
  ThrowIfError(Get().ProposeSet(number, std::move(ranks), &handle));
  return handle;
}

void PyRuntime::DeclareSet(uint32_t number, std::vector<int> ranks) {
  ThrowIfError(Get().DeclareSet(number, std::move(ranks)));
}

int64_t PyRuntime::ProposeRemoval(uint32_t number) {
  int64_t handle = -1;
  ThrowIfError(Get().ProposeRemoval(number, &handle));
  return handle;
}

void PyRuntime::MeetSet(uint32_t number) {
  CallPatiently([number, &runtime = Get()](const auto& go_on) { return runtime.MeetSet(number, go_on); });
}

void PyRuntime::EnterSet(uint32_t number) {
  CallPatiently([number, &runtime = Get()](const auto&) { return runtime.EnterSet(number); });
}

void PyRuntime::LeaveSet(uint32_t number) {
  CallPatiently([number, &runtime = Get()](const auto& go_on) { return runtime.LeaveSet(number, go_on); });
}

void PyRuntime::DropSet(uint32_t number) {
  CallPatiently([number, &runtime = Get()](const auto&) { return runtime.DropSet(number); });
}

void PyRuntime::StartTimeline(const std::string& path, bool mark_rounds) {
  ThrowIfError(Get().StartTimeline(path, mark_rounds));
}

void PyRuntime::StopTimeline() {
  runtime::Runtime& runtime = Get();
  const py::gil_scoped_release released;  // it writes what there is
  runtime.StopTimeline();
}

void PyRuntime::CallPatiently(const PatientCall& call) {
  PyThreadState* state = PyEval_SaveThread();
  const auto go_on = [&state] {
    RestoreThread(state);
    const bool quiet = PyErr_CheckSignals() == 0;
    state = PyEval_SaveThread();
    return quiet;
  };
  const Status status = call(go_on);
  RestoreThread(state);
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  ThrowIfError(status);
}

void PyRuntime::DropFinishedOwners() {
  std::vector<void*> owners = std::exchange(owners_, {});  // a finalizer may come back here
  runtime_->TakeOwners(&owners);
  for (void* owner : owners) Py_DECREF(static_cast<PyObject*>(owner));
  owners.clear();
  owners_ = std::move(owners);
}

}  // namespace horocache::python
