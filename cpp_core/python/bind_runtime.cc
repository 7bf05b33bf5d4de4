// Python bindings of Runtime and Result.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "base/clock.h"
#include "base/environment.h"
#include "data/backends/user/calls.h"
#include "python/bind.h"
#include "python/dlpack_abi.h"
#include "python/errors.h"
#include "python/runtime/py_runtime.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

// ---- Result: a tensor that the core allocated

const char* BufferFormat(DType dtype) {
  // The buffer protocol has no bfloat16: its bits are exported as uint16, and `dtype` has the real type.
  static constexpr std::array<const char*, kNumDTypes> kFormats = {"B", "b",  "h",  "i", "q", "e", "H", "f",
                                                                   "d", "Zf", "Zd", "?", "H", "I", "Q"};
  return kFormats.at(static_cast<size_t>(dtype));
}

void CheckOnHost(const PyResult& self) {
  if (self.result.on_device != nullptr)
    throw py::buffer_error("the result is on CUDA device " + std::to_string(self.cuda_device) + "; use copy_to()");
}

py::buffer_info BufferOf(PyResult& self) {
  CheckOnHost(self);
  const runtime::Result& result = self.result;
  const auto item = static_cast<py::ssize_t>(DTypeBytes(result.dtype));
  std::vector<py::ssize_t> shape(result.shape.begin(), result.shape.end());
  std::vector<py::ssize_t> strides(shape.size(), item);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<py::ssize_t>(shape[i], 1);
  return {self.data(), item, BufferFormat(result.dtype), static_cast<py::ssize_t>(shape.size()), shape, strides};
}

struct ExportedTensor {
  dlpack::ManagedTensor managed;
  PyObject* owner;
  std::vector<int64_t> shape;
};

void DropExported(dlpack::ManagedTensor* managed) {
  auto* exported = static_cast<ExportedTensor*>(managed->manager);
  const py::gil_scoped_acquire gil;
  Py_DECREF(exported->owner);
  delete exported;
}

void DropCapsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;  // a consumer has taken the tensor and renamed the capsule
  auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
  managed->deleter(managed);
}

py::capsule ExportDlpack(const py::object& self, const py::kwargs&) {
  const auto& tensor_of_core = self.cast<PyResult&>();
  CheckOnHost(tensor_of_core);
  const runtime::Result& result = tensor_of_core.result;
  const auto [code, bits] = DTypeToDlpack(result.dtype);
  auto exported = std::make_unique<ExportedTensor>();
  exported->shape = result.shape;
  exported->owner = self.ptr();
  dlpack::Tensor& tensor = exported->managed.tensor;
  tensor = {tensor_of_core.data(),
            {dlpack::kCpu, 0},
            static_cast<int32_t>(exported->shape.size()),
            {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1},
            exported->shape.data(),
            nullptr,
            0};
  exported->managed.manager = exported.get();
  exported->managed.deleter = &DropExported;
  PyObject* capsule = PyCapsule_New(&exported->managed, "dltensor", &DropCapsule);
  if (capsule == nullptr) throw py::error_already_set();
  Py_INCREF(exported.release()->owner);
  return py::reinterpret_steal<py::capsule>(capsule);
}

// Queues a copy of a result on a device to `target`, behind the operation, on the current stream of the target's
// framework.
void CopyTo(const PyResult& self, const py::object& target) {
  static auto* const caster = new TensorCaster;  // guarded by the GIL
  const runtime::Result& result = self.result;
  if (result.on_device == nullptr) throw py::value_error("the result is not on a device");
  TensorView view;
  ThrowIfError(caster->Read(target.ptr(), &view));
  if (view.dtype != result.dtype || view.shape != result.shape || !view.writable ||
      view.place != Place{wire::DeviceClass::kCuda, self.cuda_device})
    throw py::value_error("the target differs from the result in its shape, its dtype or its device");
  void* stream = nullptr;
  ThrowIfError(caster->CurrentStream(target.ptr(), self.cuda_device, &stream));
  ThrowIfError([&] {
    const py::gil_scoped_release released;  // the call may block when the stream's queue is full
    return result.on_device->CopyTo(view.data, view.count * static_cast<int64_t>(DTypeBytes(view.dtype)), stream);
  }());
}

void BindResult(py::module_& module) {
  py::class_<PyResult>(module, "Result", py::buffer_protocol(), py::is_final())
      .def_buffer(&BufferOf)
      .def_property_readonly("shape", [](const PyResult& self) { return py::tuple(py::cast(self.result.shape)); })
      .def_property_readonly("dtype", [](const PyResult& self) { return DTypeName(self.result.dtype); })
      .def_property_readonly("rows", [](const PyResult& self) { return self.result.rows; })
      .def_property_readonly("divisor_ranks", [](const PyResult& self) { return self.result.divisor_ranks; })
      .def_readonly("cuda_device", &PyResult::cuda_device)
      .def_property_readonly("on_device", [](const PyResult& self) { return self.result.on_device != nullptr; })
      .def("copy_to", &CopyTo, py::arg("target"))
      .def("__dlpack__", &ExportDlpack)
      .def("__dlpack_device__", [](const PyResult& self) {
        return self.result.on_device == nullptr ? std::tuple(int{dlpack::kCpu}, 0)
                                                : std::tuple(int{dlpack::kCuda}, self.cuda_device);
      });
}

// ---- Runtime

double ToDouble(PyObject* number) {
  const double value = PyFloat_AsDouble(number);
  if (value == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

// Methods that are called once per tensor are plain C functions, which avoid the cost of a call through pybind11.

template <typename Body>
PyObject* WithPythonErrors(Body&& body) {
  try {
    return body();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    SetOutOfMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

long ToLong(PyObject* number) {
  const long value = PyLong_AsLong(number);
  if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

int32_t ToPriority(PyObject* number) {
  const long value = ToLong(number);
  if (value == static_cast<int32_t>(value)) return static_cast<int32_t>(value);
  PyErr_SetString(PyExc_OverflowError, "a priority has 32 bits");
  throw py::error_already_set();
}

constexpr Py_ssize_t kCallArguments = 7;

InPlaceCall ToCall(PyObject* name, PyObject* const* arguments) {
  return {.name = name,
          .backend = arguments[5],
          .reduce_op = static_cast<int>(ToLong(arguments[0])),
          .prescale = ToDouble(arguments[1]),
          .postscale = ToDouble(arguments[2]),
          .wait_follows = arguments[3] == Py_True,
          .process_set = static_cast<uint32_t>(ToLong(arguments[4])),
          .priority = ToPriority(arguments[6])};
}

PyObject* HandleOrNone(int64_t handle) {
  if (handle < 0) Py_RETURN_NONE;
  return PyLong_FromLongLong(handle);
}

PyObject* AllreduceInPlace(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  constexpr Py_ssize_t kOwn = 2, kMost = kOwn + kCallArguments + 1;
  if (count != kMost && count != kMost - 1)
    return PyErr_Format(PyExc_TypeError, "allreduce_in_place takes 9 or 10 arguments, not %zd", count);
  return WithPythonErrors([&] {
    auto& runtime = py::cast<PyRuntime&>(py::handle(self));
    InPlaceCall call = ToCall(arguments[1], arguments + kOwn);
    call.full_name = count == kMost && arguments[kMost - 1] == Py_True;
    return HandleOrNone(runtime.AllreduceInPlace(arguments[0], call));
  });
}

PyObject* AllreduceEachInPlace(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  constexpr Py_ssize_t kOwn = 4;
  if (count != kOwn + kCallArguments || !PyList_Check(arguments[3]))
    return PyErr_Format(PyExc_TypeError, "allreduce_each_in_place takes 11 arguments, the fourth a list");
  return WithPythonErrors([&] {
    auto& runtime = py::cast<PyRuntime&>(py::handle(self));
    return PyBool_FromLong(runtime.AllreduceEachInPlace(arguments[0], arguments[1], arguments[2],
                                                        ToCall(Py_None, arguments + kOwn), arguments[3]));
  });
}

PyObject* AllreduceGroupInPlace(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  constexpr Py_ssize_t kOwn = 4;
  if (count != kOwn + kCallArguments)
    return PyErr_Format(PyExc_TypeError, "allreduce_group_in_place takes 11 arguments, not %zd", count);
  return WithPythonErrors([&] {
    auto& runtime = py::cast<PyRuntime&>(py::handle(self));
    return HandleOrNone(runtime.AllreduceGroupInPlace(arguments[0], arguments[2], arguments[3],
                                                      ToCall(arguments[1], arguments + kOwn)));
  });
}

PyObject* Wait(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 1 || count > 3) return PyErr_Format(PyExc_TypeError, "wait takes 1 to 3 arguments, not %zd", count);
  return WithPythonErrors([&] {
    auto& runtime = py::cast<PyRuntime&>(py::handle(self));
    const bool block = count == 3 && ToLong(arguments[2]) != 0;
    return runtime.Wait(ToLong(arguments[0]), count > 1 ? ToDouble(arguments[1]) : -1.0, block).release().ptr();
  });
}

PyObject* WaitEach(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5 || !PyTuple_Check(arguments[0]) || !PyDict_Check(arguments[1]) || !PyList_Check(arguments[3]))
    return PyErr_Format(PyExc_TypeError, "wait_each takes a tuple, a dict, a function, a list and seconds");
  return WithPythonErrors([&] {
    py::cast<PyRuntime&>(py::handle(self))
        .WaitEach(py::reinterpret_borrow<py::tuple>(arguments[0]), arguments[1], arguments[2], arguments[3],
                  ToDouble(arguments[4]));
    return py::none().release().ptr();
  });
}

using FastMethod = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

PyMethodDef MethodFor(const char* name, FastMethod method, const char* doc) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(method)), METH_FASTCALL, doc};
}

void AddFastMethods(const py::object& type) {
  static PyMethodDef methods[] = {
      MethodFor("allreduce_in_place", &AllreduceInPlace,
                "allreduce_in_place(self, tensor, name, reduce_op, prescale, postscale, wait_follows, process_set, "
                "backend, priority, full_name=False, /)"),
      MethodFor("allreduce_each_in_place", &AllreduceEachInPlace,
                "allreduce_each_in_place(self, tensors, names, plain_type, handles, reduce_op, prescale, postscale, "
                "wait_follows, process_set, backend, priority, /)"),
      MethodFor("allreduce_group_in_place", &AllreduceGroupInPlace,
                "allreduce_group_in_place(self, tensors, name, names, plain_type, reduce_op, prescale, postscale, "
                "wait_follows, process_set, backend, priority, /)"),
      MethodFor("wait", &Wait, "wait(self, handle, timeout_s=-1.0, block=False, /)"),
      MethodFor("wait_each", &WaitEach, "wait_each(self, handles, pending, finish, done, timeout_s, /)")};
  for (PyMethodDef& method : methods) {
    PyObject* descriptor = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &method);
    if (descriptor == nullptr) throw py::error_already_set();
    type.attr(method.ml_name) = py::reinterpret_steal<py::object>(descriptor);
  }
}

// Starts `size` runtimes in this process, with a shared arena on the heap. For tests, with one thread per rank.
std::vector<std::unique_ptr<PyRuntime>> StartInProcess(int size, const Texts& arguments,
                                                       const std::vector<std::vector<int>>& process_sets,
                                                       std::string_view packed) {
  const auto programs = DecodeOrThrow(packed);
  StatusOr<Knobs> knobs = Knobs::Parse(ReadEnvironment(), arguments);
  ThrowIfError(knobs.status());
  const auto arena = net::Arena::CreateOnHeap(runtime::LayoutFor(*knobs, size));
  std::vector<std::shared_ptr<net::Arena>> set_arenas;
  for (const std::vector<int>& ranks : process_sets) {
    net::ArenaLayout layout = runtime::LayoutFor(*knobs, static_cast<int>(ranks.size()));
    layout.region_bytes = 0;  // tensors are in the regions of the job's arena
    set_arenas.push_back(net::Arena::CreateOnHeap(layout));
  }
  // Sets that are added later bootstrap over a socket whose name comes from the job's name, so that must be unique.
  const std::string job =
      "in-process." + std::to_string(getpid()) + "." + std::to_string(reinterpret_cast<uintptr_t>(arena.get()));
  std::vector<std::unique_ptr<PyRuntime>> runtimes;
  for (int rank = 0; rank < size; ++rank) {
    const net::Identity identity{rank, size, rank, size, 0, 1, job, "none"};
    runtimes.push_back(std::make_unique<PyRuntime>(
        runtime::RuntimeConfig{*knobs, identity, 0, HC_VERSION, arena, process_sets, set_arenas, 0, {}, programs}));
  }
  return runtimes;
}

std::vector<std::tuple<std::string, std::vector<std::string>, std::vector<std::string>>> BackendsOf(
    PyRuntime& self, uint32_t process_set) {
  std::vector<std::tuple<std::string, std::vector<std::string>, std::vector<std::string>>> backends;
  for (const control::BackendTraits& backend : self.Get().Backends(process_set))
    backends.emplace_back(backend.name, backend.algorithms, control::OperationsOf(backend));
  return backends;
}

void LogOperations(PyRuntime& self, size_t capacity) {
  if (capacity == 0) {
    self.Get().log().Stop();
  } else {
    self.Get().log().Start(capacity);
  }
}

// Names are bytes; those that are not UTF-8 become lone surrogates, as in the names that Python gives.
py::object TextOf(const std::string& bytes) {
  PyObject* const text = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogateescape");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(text);
}

// Returns (process set, backend, calls) of a new process set; None if none came in time.
py::object TakeUserCalls(PyRuntime& self, double timeout_s) {
  runtime::Runtime& runtime = self.Get();
  const StatusOr<runtime::Runtime::UserCallsOfSet> taken = [&] {
    const py::gil_scoped_release released;
    return runtime.TakeUserCalls(DeadlineNs(timeout_s));
  }();
  ThrowIfError(taken.status());
  if (taken->calls == nullptr) return py::none();
  return py::make_tuple(taken->process_set, taken->backend, taken->calls);
}

// Returns the records as tuples, in the order of hc_record's members, and the number of those that were lost.
py::tuple TakeLog(PyRuntime& self) {
  uint64_t lost = 0;
  py::list records;
  for (observe::OperationRecord& one : self.Get().log().Take(&lost)) {
    records.append(py::make_tuple(TextOf(one.name), one.op, one.reduce_op, one.dtype, one.backend, one.algorithm,
                                  one.chosen_by, TextOf(one.layers), TextOf(one.error), one.process_set, one.tensors,
                                  one.bytes, one.sequence, one.fused, one.peer, one.submitted_ns, one.agreed_ns,
                                  one.started_ns, one.ended_ns));
  }
  return py::make_tuple(records, lost);
}

void AddSettings(py::class_<PyRuntime>* runtime) {
  (*runtime)
      .def("backends", &BackendsOf, py::arg("process_set"))
      .def(
          "configure",
          [](PyRuntime& self, const std::string& settings) { ThrowIfError(self.Get().Configure(settings)); },
          py::arg("settings"))
      .def_property_readonly("settings_changes", [](PyRuntime& self) { return self.Get().settings_changes(); })
      .def("settings", [](PyRuntime& self) {
        const runtime::Runtime::AppliedSettings settings = self.Get().settings();
        return std::tuple(settings.changes, TextOf(settings.note));
      });
}

void AddObservation(py::class_<PyRuntime>* runtime) {
  (*runtime)
      .def("start_timeline", &PyRuntime::StartTimeline, py::arg("path"), py::arg("mark_rounds"))
      .def("stop_timeline", &PyRuntime::StopTimeline)
      .def_property_readonly("writes_timeline", [](PyRuntime& self) { return self.Get().timeline()->writes(); })
      .def(
          "trace_exchange",
          [](PyRuntime& self, const std::string& layer, const std::string& name, const std::string& args,
             int64_t begin_ns,
             int64_t end_ns) { self.Get().timeline()->AddExchange(layer, name, args, begin_ns, end_ns); },
          py::arg("layer"), py::arg("name"), py::arg("args"), py::arg("begin_ns"), py::arg("end_ns"))
      .def("watch_stacks", &PyRuntime::WatchStacks, py::arg("signal"), py::arg("file"), py::arg("ask"),
           py::arg("answer"), py::arg("own_folder"))
      .def("metrics", [](PyRuntime& self) { return self.Get().metrics().Snapshot(); })
      .def("count_step", [](PyRuntime& self) { self.Get().CountStep(); })
      .def(
          "count_bytes_into_views", [](PyRuntime& self, uint64_t bytes) { self.Get().CountBytesIntoViews(bytes); },
          py::arg("size"))
      .def("log_operations", &LogOperations, py::arg("capacity"))
      .def("take_log", &TakeLog);
}

using RankLists = std::vector<std::vector<int>>;

void AddEnds(py::class_<PyRuntime>* runtime) {
  runtime->def("stop", &PyRuntime::Stop)
      .def("stop_with_process", &PyRuntime::StopWithProcess)
      .def("log_record_path", [](const PyRuntime& self) { self.Known().LogRecordPath(); })
      .def("forked_child", &PyRuntime::ForkedChild);
}

void BindReading(py::module_& module) {
  module.def(
      "read_with",
      [](const py::type& type, py::function to_capsule, py::function current_stream) {
        ReadWithFunctions(reinterpret_cast<PyTypeObject*>(type.ptr()), std::move(to_capsule),
                          std::move(current_stream));
      },
      py::arg("type"), py::arg("to_capsule"), py::arg("current_stream"));
}

}  // namespace

void BindRuntime(py::module_& module) {
  BindResult(module);
  BindUserCalls(module);
  BindReading(module);
  const auto identity = [](int net::Identity::* field) {
    return [field](const PyRuntime& self) { return self.Known().identity().*field; };
  };
  py::class_<PyRuntime> runtime(module, "Runtime", py::is_final());
  module.def("request_fields", &RequestFields);
  AddFastMethods(runtime);
  AddEnds(&runtime);
  AddSettings(&runtime);
  AddObservation(&runtime);
  runtime
      .def(py::init<const Texts&, uint32_t, RankLists, uint64_t, std::vector<int>, std::string_view, std::string,
                    const std::vector<UserBackend>&>(),
           py::arg("arguments") = Texts(), py::arg("epoch") = 0, py::arg("process_sets") = RankLists(),
           py::arg("communicator") = 0, py::arg("ranks") = std::vector<int>(), py::arg("programs") = "",
           py::arg("tuning") = "", py::arg("backends") = std::vector<UserBackend>())
      .def_property_readonly("rank", identity(&net::Identity::rank))
      .def_property_readonly("size", identity(&net::Identity::size))
      .def_property_readonly("local_rank", identity(&net::Identity::local_rank))
      .def_property_readonly("local_size", identity(&net::Identity::local_size))
      .def_property_readonly("cross_rank", identity(&net::Identity::cross_rank))
      .def_property_readonly("cross_size", identity(&net::Identity::cross_size))
      .def_property_readonly("homogeneous", [](PyRuntime& self) { return self.Known().identity().homogeneous; })
      .def_property_readonly("mpi", [](PyRuntime& self) { return self.Known().mpi(); })
      .def_property_readonly("nccl", [](PyRuntime& self) { return self.Known().nccl(); })
      .def_property_readonly("alive", [](PyRuntime& self) { return self.Known().alive(); })
      .def_property_readonly("lost_a_rank", [](PyRuntime& self) { return self.Known().lost_a_rank(); })
      .def("submit", &PyRuntime::Submit, py::arg("request"))
      .def("submit_gradients", &PyRuntime::SubmitGradients, py::arg("slots"), py::arg("reduce_op"), py::arg("prescale"),
           py::arg("postscale"), py::arg("process_set"))
      .def("submit_gradient_group", &PyRuntime::SubmitGradientGroup, py::arg("bucket"), py::arg("tensors"),
           py::arg("name"), py::arg("names"), py::arg("type"), py::arg("plain"), py::arg("reduce_op"),
           py::arg("prescale"), py::arg("postscale"), py::arg("process_set"))
      .def("finish_gradients", &PyRuntime::FinishGradients, py::arg("buckets"))
      .def("empty", &PyRuntime::Empty, py::arg("shape"), py::arg("dtype"))
      .def("is_shared", &PyRuntime::IsShared, py::arg("tensor"))
      .def("poll", &PyRuntime::Poll, py::arg("handle"))
      .def("await_copies", &PyRuntime::AwaitCopies, py::arg("results"), py::arg("timeout_s"))
      .def("next_set", [](PyRuntime& self) { return self.Get().NextSet(); })
      .def("propose_set", &PyRuntime::ProposeSet, py::arg("number"), py::arg("ranks"))
      .def("declare_set", &PyRuntime::DeclareSet, py::arg("number"), py::arg("ranks"))
      .def("connect_set", &PyRuntime::ConnectSet, py::arg("number"))
      .def("open_set", &PyRuntime::OpenSet, py::arg("number"))
      .def("propose_removal", &PyRuntime::ProposeRemoval, py::arg("number"))
      .def("leave_set", &PyRuntime::LeaveSet, py::arg("number"))
      .def("drop_set", &PyRuntime::DropSet, py::arg("number"))
      .def("knobs", [](PyRuntime& self) { return KnobsForPython(self.Get().knobs()); })
      .def("take_user_calls", &TakeUserCalls, py::arg("timeout_s"))
      .def("c_api", &PyRuntime::CApi)
      .def("abort", [](PyRuntime& self, const std::string& why) { self.Get().Abort(why); }, py::arg("why"));
  module.def("start_in_process", &StartInProcess, py::arg("size"), py::arg("arguments") = Texts(),
             py::arg("process_sets") = RankLists(), py::arg("programs") = "");
}

}  // namespace horocache::python
