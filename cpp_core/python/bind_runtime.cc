// Runtime and Result as Python sees them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "base/clock.h"
#include "base/environment.h"
#include "python/bind.h"
#include "python/dlpack_abi.h"
#include "python/errors.h"
#include "python/tensor_caster.h"
#include "runtime/runtime.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

using runtime::Operation;
using runtime::TensorArgument;
using Texts = std::map<std::string, std::string>;

// ---- Result: a tensor that the core allocated, exported without a copy

struct PyResult {
  runtime::Result result;
  std::vector<int64_t> strides_bytes;
};

const char* BufferFormat(DType dtype) {
  // The buffer protocol has no bfloat16: its bits go out as uint16, and `dtype` tells what they are.
  static constexpr std::array<const char*, kNumDTypes> kFormats = {"B", "b", "h", "i",  "q",  "e",
                                                                   "H", "f", "d", "Zf", "Zd", "?"};
  return kFormats.at(static_cast<size_t>(dtype));
}

py::buffer_info BufferOf(PyResult& self) {
  const runtime::Result& result = self.result;
  const auto item = static_cast<py::ssize_t>(DTypeBytes(result.dtype));
  std::vector<py::ssize_t> shape(result.shape.begin(), result.shape.end());
  std::vector<py::ssize_t> strides(shape.size(), item);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<py::ssize_t>(shape[i], 1);
  return {result.bytes.get(), item, BufferFormat(result.dtype), static_cast<py::ssize_t>(shape.size()), shape, strides};
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
  if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;  // somebody took it over and renamed it
  auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
  managed->deleter(managed);
}

py::capsule ExportDlpack(const py::object& self, const py::kwargs&) {
  const runtime::Result& result = self.cast<PyResult&>().result;
  const auto [code, bits] = DTypeToDlpack(result.dtype);
  auto exported = std::make_unique<ExportedTensor>();
  exported->shape = result.shape;
  exported->owner = self.ptr();
  dlpack::Tensor& tensor = exported->managed.tensor;
  tensor = {result.bytes.get(),
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

void BindResult(py::module_& module) {
  py::class_<PyResult>(module, "Result", py::buffer_protocol(), py::is_final())
      .def_buffer(&BufferOf)
      .def_property_readonly("shape", [](const PyResult& self) { return py::tuple(py::cast(self.result.shape)); })
      .def_property_readonly("dtype", [](const PyResult& self) { return DTypeName(self.result.dtype); })
      .def_property_readonly("rows", [](const PyResult& self) { return self.result.rows; })
      .def("__dlpack__", &ExportDlpack)
      .def("__dlpack_device__", [](const PyResult&) { return std::make_tuple(dlpack::kCpu, 0); });
}

// ---- Runtime

// Whether the first dimension may differ between ranks, so that it is left out of what they compare.
bool RowsDiffer(wire::Op op) {
  return op == wire::Op::kAllgather || op == wire::Op::kAlltoall || op == wire::Op::kGather || op == wire::Op::kScatter;
}

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

class PyRuntime {
 public:
  PyRuntime(const Texts& arguments, uint32_t epoch) {
    const auto environment = ReadEnvironment();
    StatusOr<Knobs> knobs = Knobs::Parse(environment, arguments);
    ThrowIfError(knobs.status());
    StatusOr<net::Identity> identity = net::DetectIdentity(*knobs, environment);
    ThrowIfError(identity.status());
    Start({std::move(*knobs), std::move(*identity), epoch, HC_VERSION, nullptr});
  }
  PyRuntime(runtime::RuntimeConfig config) { Start(std::move(config)); }
  ~PyRuntime() {
    if (runtime_ != nullptr) Stop();
  }

  void Stop() {
    {
      const py::gil_scoped_release released;
      runtime_->Stop();
    }
    DropFinishedOwners();
  }

  // Leaks on purpose: in a forked child there are no threads to join, and nothing of the parent's may be torn down.
  void ForkedChild() {
    runtime_->ForkedChild();
    runtime_.release();  // NOLINT
  }

  int64_t Submit(int op, const py::sequence& inputs, const py::object& outputs, const py::object& name,
                 const py::object& names, int reduce_op, double prescale, double postscale, int root,
                 const py::object& splits, int process_set, const std::string& backend, const std::string& layers,
                 bool group, bool wait_follows) {
    DropFinishedOwners();
    if (process_set != 0)
      ThrowIfError({StatusCode::kUnsupported, "process sets other than the global one are not available yet"});
    Operation* operation = Get().NewOperation();
    try {
      Fill(operation, op, inputs, outputs, name, names, splits, group);
    } catch (...) {
      Get().Recycle(operation);
      throw;
    }
    wire::Signature& signature = operation->request.signature;
    signature.reduce_op = static_cast<wire::ReduceOp>(reduce_op);
    signature.prescale = prescale;
    signature.postscale = postscale;
    signature.root = root;
    signature.backend = backend;
    signature.layers = layers;
    PyObject* owner =
        PyTuple_Pack(2, PySequence_Tuple(inputs.ptr()), outputs.is_none() ? Py_None : PySequence_Tuple(outputs.ptr()));
    for (Py_ssize_t i = 0; i < (outputs.is_none() ? 1 : 2); ++i)
      Py_DECREF(PyTuple_GET_ITEM(owner, i));  // the pack holds its own reference
    operation->owner = owner;
    const Status status = Get().Submit(operation, wait_follows);
    if (!status.ok()) {
      Py_DECREF(owner);
      ThrowIfError(status);
    }
    return operation->handle;
  }

  bool Poll(int64_t handle) { return FindOrThrow(handle)->done.load(std::memory_order_acquire) != 0; }

  py::object Wait(int64_t handle, double timeout_s) {
    Operation* operation = FindOrThrow(handle);
    const int64_t deadline_ns = timeout_s < 0 ? INT64_MAX : NowNs() + static_cast<int64_t>(timeout_s * 1e9);
    const auto no_signal = [] {
      const py::gil_scoped_acquire gil;
      return PyErr_CheckSignals() == 0;
    };
    bool done;
    {
      const py::gil_scoped_release released;
      done = runtime_->Wait(operation, deadline_ns, timeout_s < 0, no_signal);
    }
    if (!done) {
      if (PyErr_Occurred() == nullptr) {
        PyErr_SetString(
            PyExc_TimeoutError,
            ("handle " + std::to_string(handle) + " is not done after " + std::to_string(timeout_s) + " s").c_str());
      }
      throw py::error_already_set();
    }
    return Consume(operation);
  }

  runtime::Runtime& Get() {
    if (runtime_ == nullptr)
      ThrowIfError({StatusCode::kForked,
                    "horocache cannot be used in a child of fork(); call init() in a new process instead."});
    return *runtime_;
  }

 private:
  void Start(runtime::RuntimeConfig config) {
    Status status;
    {
      const py::gil_scoped_release released;
      auto started = runtime::Runtime::Start(std::move(config));
      status = started.status();
      if (started.ok()) runtime_ = std::move(*started);
    }
    ThrowIfError(status);
  }

  Operation* FindOrThrow(int64_t handle) {
    Operation* operation = Get().Find(handle);
    if (operation == nullptr) {
      PyErr_SetString(PyExc_ValueError,
                      ("Handle " + std::to_string(handle) + " was not created or has been cleared.").c_str());
      throw py::error_already_set();
    }
    return operation;
  }

  void Fill(Operation* operation, int op, const py::sequence& inputs, const py::object& outputs, const py::object& name,
            const py::object& names, const py::object& splits, bool group) {
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
    operation->splits.clear();
    if (!splits.is_none()) {
      for (const py::handle rows : splits) operation->splits.push_back(rows.cast<int64_t>());
    }
    for (size_t i = 0; i < count; ++i) {
      FillTensor(operation, i, inputs[i], outputs.is_none() ? py::object() : py::object(outputs[py::int_(i)]));
      NameTensor(&signature, i, names, group);
    }
  }

  void FillTensor(Operation* operation, size_t index, const py::object& input, const py::object& output) {
    wire::TensorMeta& meta = operation->request.signature.tensors[index];
    TensorArgument& argument = operation->tensors[index];
    ThrowIfError(caster_.Read(input.ptr(), &view_));
    meta.dtype = view_.dtype;
    meta.shape = view_.shape;
    argument.input = view_.data;
    argument.output = nullptr;
    argument.count = view_.count;
    argument.rows = view_.shape.empty() ? 1 : view_.shape[0];
    operation->request.signature.device_class = view_.device_class;
    if (RowsDiffer(operation->request.signature.op)) {
      if (meta.shape.empty()) meta.shape.push_back(1);
      meta.shape[0] = -1;
    }
    if (!output || output.is_none()) return;
    if (output.ptr() != input.ptr()) {
      ThrowIfError(caster_.Read(output.ptr(), &view_));
      if (view_.dtype != meta.dtype || view_.count != argument.count) {
        ThrowIfError({StatusCode::kInvalidArgument,
                      "output " + std::to_string(index) + " has " + std::to_string(view_.count) + " elements of " +
                          std::string(DTypeName(view_.dtype)) + ", its input has " + std::to_string(argument.count) +
                          " of " + std::string(DTypeName(meta.dtype))});
      }
    }
    if (!view_.writable)
      ThrowIfError({StatusCode::kInvalidArgument, "output " + std::to_string(index) + " is read-only"});
    argument.output = view_.data;
  }

  static void NameTensor(wire::Signature* signature, size_t index, const py::object& names, bool group) {
    std::string& member = signature->tensors[index].name;
    if (!names.is_none()) {
      AssignText(names[py::int_(index)], &member);
      return;
    }
    member = signature->name;
    const size_t count = signature->tensors.size();
    if (count > 1 || (group && !signature->name.empty())) {
      member.append("_").append(std::to_string(index + 1)).append("of").append(std::to_string(count));
    }
  }

  py::object Consume(Operation* operation) {
    if (operation->owner != nullptr) Py_DECREF(static_cast<PyObject*>(std::exchange(operation->owner, nullptr)));
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
    for (runtime::Result& result : results) out.append(py::cast(PyResult{std::move(result), {}}));
    return out;
  }

  void DropFinishedOwners() {
    owners_.clear();
    runtime_->TakeOwners(&owners_);
    for (void* owner : owners_) Py_DECREF(static_cast<PyObject*>(owner));
  }

  std::unique_ptr<runtime::Runtime> runtime_;
  TensorCaster caster_;
  TensorView view_;
  std::vector<void*> owners_;
};

// Runtimes of one process that share an arena on the heap; for tests, one thread per rank.
std::vector<std::unique_ptr<PyRuntime>> StartInProcess(int size, const Texts& arguments) {
  StatusOr<Knobs> knobs = Knobs::Parse(ReadEnvironment(), arguments);
  ThrowIfError(knobs.status());
  const auto arena = net::Arena::CreateOnHeap(runtime::LayoutFor(*knobs, size));
  std::vector<std::unique_ptr<PyRuntime>> runtimes;
  for (int rank = 0; rank < size; ++rank) {
    const net::Identity identity{rank, size, rank, size, 0, 1, "in-process", "none"};
    runtimes.push_back(std::make_unique<PyRuntime>(runtime::RuntimeConfig{*knobs, identity, 0, HC_VERSION, arena}));
  }
  return runtimes;
}

}  // namespace

void BindRuntime(py::module_& module) {
  BindResult(module);
  const auto identity = [](int net::Identity::* field) {
    return [field](PyRuntime& self) { return self.Get().identity().*field; };
  };
  py::class_<PyRuntime>(module, "Runtime", py::is_final())
      .def(py::init<const Texts&, uint32_t>(), py::arg("arguments") = Texts(), py::arg("epoch") = 0)
      .def("stop", &PyRuntime::Stop)
      .def("forked_child", &PyRuntime::ForkedChild)
      .def_property_readonly("rank", identity(&net::Identity::rank))
      .def_property_readonly("size", identity(&net::Identity::size))
      .def_property_readonly("local_rank", identity(&net::Identity::local_rank))
      .def_property_readonly("local_size", identity(&net::Identity::local_size))
      .def_property_readonly("cross_rank", identity(&net::Identity::cross_rank))
      .def_property_readonly("cross_size", identity(&net::Identity::cross_size))
      .def_property_readonly("alive", [](PyRuntime& self) { return self.Get().alive(); })
      .def("submit", &PyRuntime::Submit, py::arg("op"), py::arg("inputs"), py::arg("outputs"),
           py::arg("name") = py::none(), py::arg("names") = py::none(), py::arg("reduce_op") = 1,
           py::arg("prescale") = 1.0, py::arg("postscale") = 1.0, py::arg("root") = -1, py::arg("splits") = py::none(),
           py::arg("process_set") = 0, py::arg("backend") = "", py::arg("layers") = "", py::arg("group") = false,
           py::arg("wait_follows") = false)
      .def("poll", &PyRuntime::Poll, py::arg("handle"))
      .def("wait", &PyRuntime::Wait, py::arg("handle"), py::arg("timeout_s") = -1.0)
      .def("knobs", [](PyRuntime& self) { return KnobsForPython(self.Get().knobs()); })
      .def("metrics", [](PyRuntime& self) { return self.Get().metrics().Snapshot(); })
      .def("abort", [](PyRuntime& self, const std::string& why) { self.Get().Abort(why); }, py::arg("why"));
  module.def("start_in_process", &StartInProcess, py::arg("size"), py::arg("arguments") = Texts());
}

}  // namespace horocache::python
