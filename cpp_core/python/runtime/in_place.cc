// The fast path of in-place allreduce, for tensors that the core reads by itself. Nearly all gradients take it.
//
// If a tensor or a name is unusual, these functions return -1, and the caller takes the general path, which raises the
// error or makes a copy.
#include <string>
#include <string_view>

#include "python/runtime/py_runtime.h"
#include "python/torch_gradients/gradients.h"
#include "runtime/submission/prepare.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

using runtime::GroupTemplate;
using runtime::Operation;

constexpr std::string_view kAllreducePrefix = "allreduce.";

// Appends a str or bytes object; returns false for other types and for a str that cannot be encoded.
bool AppendText(PyObject* object, std::string* out) {
  if (PyBytes_Check(object)) {
    out->append(PyBytes_AS_STRING(object), static_cast<size_t>(PyBytes_GET_SIZE(object)));
    return true;
  }
  if (!PyUnicode_Check(object)) return false;
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object, &length);
  if (text == nullptr) PyErr_Clear();  // lone surrogates
  if (text != nullptr) out->append(text, static_cast<size_t>(length));
  return text != nullptr;
}

// Writes an allreduce's name as the ranks compare it. For None it is empty, and the core chooses a name. Returns false
// if `name` is not text.
bool NameAllreduce(const InPlaceCall& call, std::string* out) {
  out->clear();
  if (call.name == Py_None) return true;
  if (!call.full_name) out->append(kAllreducePrefix);
  return AppendText(call.name, out);
}

bool ReadBackend(PyObject* backend, std::string* out) {
  out->clear();
  return backend == Py_None || AppendText(backend, out);
}

// Sets the field to `value`; sets *same to false if that changes it.
template <typename Field, typename Value>
void Keep(const Value& value, Field* field, bool* same) {
  if (*field == value) return;
  *field = value;
  *same = false;
}

// Sets the fields of the request that depend on neither names nor tensors.
void KeepCall(const std::string& backend, const InPlaceCall& call, Operation* operation, bool* same) {
  wire::Signature& signature = operation->request.signature;
  Keep(backend, &signature.backend, same);
  Keep(wire::Op::kAllreduce, &signature.op, same);
  Keep(wire::DivideBy::kAll, &signature.divide_by, same);
  Keep(-1, &signature.root, same);
  Keep(call.priority, &signature.priority, same);
  Keep(static_cast<wire::ReduceOp>(call.reduce_op), &signature.reduce_op, same);
  Keep(call.prescale, &signature.prescale, same);
  Keep(call.postscale, &signature.postscale, same);
  Keep(call.process_set, &operation->prepared.process_set, same);
}

bool IsList(PyObject* object) { return PyList_CheckExact(object) || PyTuple_CheckExact(object); }

}  // namespace

// The tensors and names of a group; the names may be missing. Copies the lists, because another thread may change them
// while Python code runs for a tensor.
class Members {
 public:
  // Returns false if an argument is not a list or tuple, or if their lengths differ.
  bool Read(PyObject* tensors, PyObject* names) {
    if (!IsList(tensors) || (names != Py_None && !IsList(names))) return false;
    tensors_ = Hold(tensors);
    if (names != Py_None) names_ = Hold(names);
    return !names_ || PyTuple_GET_SIZE(names_.ptr()) == PyTuple_GET_SIZE(tensors_.ptr());
  }

  const py::object& tensors() const { return tensors_; }
  size_t count() const { return static_cast<size_t>(PyTuple_GET_SIZE(tensors_.ptr())); }
  bool named() const { return static_cast<bool>(names_); }
  PyObject* name(size_t i) const { return PyTuple_GET_ITEM(names_.ptr(), static_cast<Py_ssize_t>(i)); }
  // Null if the tensor is not of exactly this type.
  PyObject* tensor(size_t i, PyObject* type) const {
    PyObject* const tensor = PyTuple_GET_ITEM(tensors_.ptr(), static_cast<Py_ssize_t>(i));
    return reinterpret_cast<PyObject*>(Py_TYPE(tensor)) == type ? tensor : nullptr;
  }

 private:
  static py::object Hold(PyObject* list) {
    auto held = py::reinterpret_steal<py::object>(PySequence_Tuple(list));
    if (!held) throw py::error_already_set();
    return held;
  }

  py::object tensors_, names_;
};

bool PyRuntime::ReadInPlace(PyObject* tensor, const InPlaceCall& call) {
  return call.plain ? caster_.ReadPlainInPlace(tensor, &view_) : caster_.ReadInPlace(tensor, &view_);
}

int64_t PyRuntime::AllreduceInPlace(PyObject* tensor, const InPlaceCall& call) {
  runtime::Runtime& runtime = Get();
  DropFinishedOwners();
  Operation* operation = runtime.NewOperation();
  wire::Signature& signature = operation->request.signature;
  if (!NameAllreduce(call, &signature.name) || !ReadBackend(call.backend, &signature.backend) ||
      !ReadInPlace(tensor, call)) {
    runtime.Recycle(operation);
    return -1;
  }
  operation->process_set = call.process_set;
  signature.op = wire::Op::kAllreduce;
  signature.divide_by = wire::DivideBy::kAll;
  signature.root = -1;
  signature.priority = call.priority;
  signature.layers.clear();
  signature.tensors.resize(1);
  signature.tensors[0].name = signature.name;
  operation->tensors.resize(1);
  Describe(0, operation);
  operation->tensors[0].output = view_.data;
  operation->allocate_results = false;
  Py_INCREF(tensor);
  return SubmitOwned(operation, tensor, call.reduce_op, call.prescale, call.postscale, call.wait_follows);
}

bool PyRuntime::AllreduceEachInPlace(PyObject* tensors, PyObject* names, PyObject* type, InPlaceCall call,
                                     PyObject* handles) {
  Members members;
  if (!members.Read(tensors, names)) return false;
  for (auto i = static_cast<size_t>(PyList_GET_SIZE(handles)); i < members.count(); ++i) {
    call.name = members.named() ? members.name(i) : Py_None;
    PyObject* const tensor = members.tensor(i, type);
    const int64_t handle = tensor == nullptr ? -1 : AllreduceInPlace(tensor, call);
    if (handle < 0) return false;
    const auto number = py::reinterpret_steal<py::object>(PyLong_FromLongLong(handle));
    if (!number || PyList_Append(handles, number.ptr()) != 0) throw py::error_already_set();
  }
  return true;
}

py::list PyRuntime::SubmitGradients(const py::list& slots, int reduce_op, double prescale, double postscale,
                                    uint32_t process_set) {
  py::list others;
  InPlaceCall call{.backend = Py_None,
                   .reduce_op = reduce_op,
                   .prescale = prescale,
                   .postscale = postscale,
                   .process_set = process_set,
                   .plain = true};
  for (const py::handle item : slots) {
    auto* const slot = reinterpret_cast<GradientSlot*>(item.ptr());
    PyObject* const tensor = SentFor(*slot);
    auto* const bucket = reinterpret_cast<GradientBucket*>(slot->bucket);
    call.name = slot->name;
    call.priority = bucket->priority;
    const int64_t handle = tensor == nullptr ? -1 : AllreduceInPlace(tensor, call);
    if (handle < 0) {
      others.append(item);
      continue;
    }
    Py_XSETREF(bucket->handle, py::int_(handle).release().ptr());
    bucket->submitted = bucket->direct = 1;
  }
  return others;
}

// ---- groups

int64_t PyRuntime::AllreduceGroupInPlace(PyObject* tensors, PyObject* names, PyObject* type, const InPlaceCall& call) {
  runtime::Runtime& runtime = Get();
  DropFinishedOwners();
  text_.clear();
  if (call.name != Py_None && (!AppendText(call.name, &text_) || text_.empty())) return -1;
  Members members;
  if (!members.Read(tensors, names) || members.count() == 0) return -1;
  Operation* operation = text_.empty() ? runtime.NewOperation() : runtime.NewGroup(text_);
  if (!FillGroup(operation, members, type, call)) {
    runtime.Recycle(operation);
    return -1;
  }
  operation->first_ready_ns = call.first_ready_ns;
  PyObject* const owner = members.tensors().inc_ref().ptr();
  return SubmitOwned(operation, owner, call.reduce_op, call.prescale, call.postscale, call.wait_follows);
}

py::object PyRuntime::SubmitGradientGroup(py::handle bucket, py::handle tensors, py::handle name, py::handle names,
                                          py::handle type, bool plain, int reduce_op, double prescale, double postscale,
                                          uint32_t process_set) {
  const auto* const group = reinterpret_cast<const GradientBucket*>(bucket.ptr());
  const int64_t handle = AllreduceGroupInPlace(tensors.ptr(), names.ptr(), type.ptr(),
                                               {.name = name.ptr(),
                                                .backend = Py_None,
                                                .reduce_op = reduce_op,
                                                .prescale = prescale,
                                                .postscale = postscale,
                                                .process_set = process_set,
                                                .priority = group->priority,
                                                .plain = plain,
                                                .first_ready_ns = group->first_ready_ns});
  return handle < 0 ? py::object(py::none()) : py::int_(handle);
}

// Fills a group's record; see Note [Repeated groups] in operation_table.h. `text_` is the group's name.
// Returns false if the group needs the general path.
bool PyRuntime::FillGroup(Operation* operation, const Members& members, PyObject* type, const InPlaceCall& call) {
  wire::Signature& signature = operation->request.signature;
  GroupTemplate& prepared = operation->prepared;
  const size_t size = members.count();
  bool same = std::exchange(prepared.filled, false) && signature.tensors.size() == size;
  prepared.same_memory = same;
  const bool number_members = !members.named() && (!same || !prepared.numbers_members);
  prepared.numbers_members = !members.named();
  same = same && !number_members;
  if (!prepared.same_memory) {
    signature.name = text_;
    signature.layers.clear();
    signature.tensors.resize(size);
    operation->tensors.resize(size);
  }
  if (!ReadBackend(call.backend, &text_)) return false;
  KeepCall(text_, call, operation, &same);
  for (size_t i = 0; i < size; ++i) {
    PyObject* const tensor = members.tensor(i, type);
    if (tensor == nullptr || !ReadInPlace(tensor, call)) return false;
    FillMember(operation, i, &same);
    if (number_members) runtime::NameMember(i, true, &signature);
    if (!members.named()) continue;
    text_.clear();
    if (!AppendText(members.name(i), &text_)) return false;
    Keep(text_, &signature.tensors[i].name, &same);
  }
  Keep(view_.place.device_class, &signature.device_class, &same);
  prepared.same_request = same;
  operation->process_set = call.process_set;
  operation->allocate_results = false;
  operation->tag = 0;
  return true;
}

// Fills a member from view_; sets *same to false if its request differs from the previous one.
void PyRuntime::FillMember(Operation* operation, size_t index, bool* same) {
  runtime::TensorArgument& tensor = operation->tensors[index];
  const wire::TensorMeta& meta = operation->request.signature.tensors[index];
  if (meta.dtype != view_.dtype || meta.shape != view_.shape) {
    *same = false;
    operation->prepared.same_memory = false;
  }
  if (tensor.output != view_.data) operation->prepared.same_memory = false;
  if (!*same) Describe(index, operation);
  tensor.input = tensor.output = view_.data;
}

}  // namespace horocache::python
