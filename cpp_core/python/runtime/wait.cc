// Waits for operations and consumes them, one by one or many in one call.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/text.h"
#include "control/signature.h"
#include "python/gil.h"
#include "python/runtime/py_runtime.h"
#include "python/torch_gradients/gradients.h"

namespace py = pybind11;

namespace horocache::python {

using runtime::Operation;
using runtime::OperationState;

namespace {

// `cuda_device`: see PyResult.
py::list ToPython(std::vector<runtime::Result> results, int cuda_device) {
  py::list list;
  for (runtime::Result& result : results)
    list.append(py::cast(PyResult{.result = std::move(result), .cuda_device = cuda_device}));
  return list;
}

}  // namespace

py::object PyRuntime::Wait(int64_t handle, double timeout_s, bool block) {
  FindOrThrow(handle);
  Operation* const operation = Await(handle, timeout_s, block);
  return Consume(operation != nullptr ? operation : FindOrThrow(handle));
}

Operation* PyRuntime::Await(int64_t handle, double timeout_s, bool block) {
  Operation* operation = Get().Find(handle);
  if (operation == nullptr || IsDone(*operation)) return operation;
  const int64_t deadline_ns = timeout_s < 0 ? kNever : DeadlineNs(timeout_s);
  if (!block) {
    WaitUntil(OperationState::kLaunched, operation, handle, timeout_s, deadline_ns);
    operation = Get().Find(handle);  // another thread may have consumed it meanwhile
    if (operation == nullptr || IsDone(*operation)) return operation;
    const bool ordered = OrderBehind(*operation);
    operation = Get().Find(handle);
    if (ordered || operation == nullptr) return operation;
  }
  WaitUntil(OperationState::kDone, operation, handle, timeout_s, deadline_ns);
  return Get().Find(handle);
}

// Makes the caller's current stream wait for the result of a launched operation. False if it cannot, because the
// program captures a graph on it, or the device has failed. Another thread may consume the operation meanwhile.
bool PyRuntime::OrderBehind(const Operation& operation) {
  const auto owner = py::reinterpret_borrow<py::tuple>(static_cast<PyObject*>(operation.owner));
  const py::object tensor = py::tuple(owner[0])[0];
  const std::shared_ptr<const cuda::Event> on_device = operation.on_device;
  void* stream = nullptr;
  if (!caster_.CurrentStream(tensor.ptr(), operation.computed->device(), &stream).ok()) return false;
  const py::gil_scoped_release released;  // the call may block when the stream's queue is full
  return on_device->HoldBackProgram(stream).ok();
}

void PyRuntime::WaitUntil(OperationState until, Operation* operation, int64_t handle, double timeout_s,
                          int64_t deadline_ns) {
  const auto for_good = dag::Engine::IsInOperation() ? runtime::WaitKind::kForGoodInPool : runtime::WaitKind::kForGood;
  const auto kind = timeout_s < 0 ? for_good : runtime::WaitKind::kLimited;
  bool done = false;
  {
    WithoutGil without;
    const auto goes_on = [&] {
      // Another waiting thread may have consumed the operation. Its record may then belong to another operation.
      return without.WithGil([&] { return PyErr_CheckSignals() == 0 && runtime_->Find(handle) == operation; });
    };
    // By reference: std::function would allocate memory to hold a copy.
    done = runtime_->Wait(operation, deadline_ns, kind, std::ref(goes_on), until);
  }
  if (PyErr_Occurred() != nullptr)
    throw py::error_already_set();  // from a signal handler, even if the operation is done
  if (done) return;
  FindOrThrow(handle);
  const std::string late = control::Describe(operation->request.signature) + " (handle " + std::to_string(handle) +
                           ") is not done on rank " + std::to_string(runtime_->identity().rank) + " after " +
                           SecondsText(static_cast<int64_t>(timeout_s * kNsPerS));
  PyErr_SetString(PyExc_TimeoutError, late.c_str());
  throw py::error_already_set();
}

py::object PyRuntime::Consume(Operation* operation) {
  const wire::Op op = operation->request.signature.op;
  const bool allocated = operation->allocate_results && op != wire::Op::kBarrier;
  const int cuda_device = operation->computed.has_value() ? operation->computed->device() : -1;
  std::vector<runtime::Result> results;
  const auto answer = [&]() -> py::object {
    if (!allocated) return py::none();
    return ToPython(std::move(results), cuda_device);
  };
  if (Get().Release(operation, &results)) return answer();
  results = std::move(operation->results);
  // Destroyed last, because a finalizer may call this object again.
  const auto owner =
      py::reinterpret_steal<py::object>(static_cast<PyObject*>(std::exchange(operation->owner, nullptr)));
  const Status status = operation->status;
  const int32_t last_joined = operation->last_joined;
  Get().Recycle(operation);
  ThrowIfError(status);
  if (op == wire::Op::kJoin) return py::int_(last_joined);
  return answer();
}

void PyRuntime::AwaitCopies(const py::list& results, double timeout_s) {
  constexpr int64_t kNapNs = 50'000, kSignalsNs = 50'000'000;
  std::vector<std::shared_ptr<cuda::DeviceBuffer>> copied;
  for (const py::handle result : results) {
    const auto& buffer = result.cast<const PyResult&>().result.on_device;
    if (buffer != nullptr) copied.push_back(buffer);
  }
  if (copied.empty()) return;
  const int64_t deadline_ns = timeout_s < 0 ? kNever : DeadlineNs(timeout_s);
  CallPatiently([&](const std::function<bool()>& go_on) -> Status {
    for (int64_t signals_ns = NowNs() + kSignalsNs; !copied.empty() && NowNs() < deadline_ns;) {
      const StatusOr<bool> used = copied.back()->Used();
      HC_RETURN_IF_ERROR(used.status());
      if (*used) {
        copied.pop_back();
        continue;
      }
      Nap(kNapNs);
      if (NowNs() < signals_ns) continue;
      if (!go_on()) break;
      signals_ns = NowNs() + kSignalsNs;
    }
    return Status::Ok();
  });
  if (copied.empty()) return;
  const std::string late = "the current stream has not come to the results' copies after " +
                           SecondsText(static_cast<int64_t>(timeout_s * kNsPerS)) +
                           ": the work before them on it has not ended";
  PyErr_SetString(PyExc_TimeoutError, late.c_str());
  throw py::error_already_set();
}

void PyRuntime::CallPatiently(const PatientCall& call) {
  Status status;
  {
    WithoutGil without;
    status = call([&without] { return without.WithGil([] { return PyErr_CheckSignals() == 0; }); });
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  ThrowIfError(status);
}

// ---- many in one call

void PyRuntime::WaitEach(const py::tuple& handles, PyObject* pending, PyObject* finish, PyObject* done,
                         double timeout_s) {
  const int64_t deadline_ns = timeout_s < 0 ? kNever : DeadlineNs(timeout_s);
  for (const py::handle number : handles) {
    const auto item = py::reinterpret_borrow<py::object>(PyDict_GetItemWithError(pending, number.ptr()));
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (!item || PyTuple_GET_ITEM(item.ptr(), 0) != finish) return;
    const double left_s =
        timeout_s < 0 ? timeout_s : std::max(0.0, static_cast<double>(deadline_ns - NowNs()) / kNsPerS);
    if (!TakeIfGood(pending, number.ptr(), item, left_s)) return;
    if (PyList_Append(done, PyTuple_GET_ITEM(item.ptr(), 1)) != 0) throw py::error_already_set();
  }
}

// Waits for the operation. Consumes it and removes it from `pending` if it succeeds; else `pending` has the item as
// before.
bool PyRuntime::TakeIfGood(PyObject* pending, PyObject* number, const py::object& item, double timeout_s) {
  const auto put_back = [&] {
    if (PyDict_SetItem(pending, number, item.ptr()) != 0) throw py::error_already_set();
  };
  // Removed first, so that a second thread that waits for the same handle does not find it.
  if (PyDict_DelItem(pending, number) != 0) throw py::error_already_set();
  try {
    Operation* const operation = Await(PyLong_AsLongLong(number), timeout_s, /*block=*/false);
    if (operation != nullptr && ConsumeIfGood(operation)) return true;
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
  return false;
}

// Returns false, with nothing changed, if the operation has failed.
bool PyRuntime::ConsumeIfGood(Operation* operation) {
  std::vector<runtime::Result> dropped;
  if (Get().Release(operation, &dropped)) return true;
  if (!operation->status.ok()) return false;
  Consume(operation);
  return true;
}

py::list PyRuntime::FinishGradients(const py::list& buckets) {
  py::list others;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const py::object item = buckets[i];  // a reference: other threads run while this one waits
    if (!FinishGradient(reinterpret_cast<GradientBucket*>(item.ptr()))) others.append(item);
  }
  return others;
}

// Returns false if the bucket needs the general path.
bool PyRuntime::FinishGradient(GradientBucket* bucket) {
  if (!bucket->direct || bucket->handle == nullptr || bucket->handle == Py_None) return false;
  Operation* const operation = Await(PyLong_AsLongLong(bucket->handle), -1.0, /*block=*/false);
  if (operation == nullptr || !AreUntouched(*bucket) || !ConsumeIfGood(operation)) return false;
  Py_INCREF(Py_None);
  Py_XSETREF(bucket->handle, Py_None);
  return true;
}

}  // namespace horocache::python
