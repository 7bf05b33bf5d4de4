#include "python/tensor_caster.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "python/dlpack_abi.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

struct Functions {
  PyTypeObject* type;
  py::function to_capsule, current_stream;
};

// Never destroyed: the interpreter ends before static objects do. Guarded by the GIL.
std::vector<Functions>& AllFunctions() {
  static auto* const functions = new std::vector<Functions>;
  return *functions;
}

// Null if there are none.
const Functions* FunctionsOf(PyObject* object) {
  for (const Functions& functions : AllFunctions()) {
    if (PyObject_TypeCheck(object, functions.type) != 0) return &functions;
  }
  return nullptr;
}

std::string TypeName(PyObject* object) { return Py_TYPE(object)->tp_name; }

// Converts the pending Python error to a status.
Status FetchError(PyObject* object) {
  py::error_already_set error;
  return InvalidArgumentError("cannot read a " + TypeName(object) + " as a tensor: " + error.what());
}

bool AreCompact(int ndim, const int64_t* shape, const int64_t* strides, int64_t unit) {
  // The strides of an empty tensor do not matter; torch gives it arbitrary ones.
  if (std::find(shape, shape + ndim, 0) != shape + ndim) return true;
  int64_t expected = unit;
  for (int i = ndim - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

void SetShape(int ndim, const int64_t* shape, TensorView* view) {
  view->shape.assign(shape, shape + ndim);
  view->count = 1;
  for (const int64_t extent : view->shape) view->count *= extent;
}

}  // namespace

std::string PlaceName(const Place& place) {
  return place == Place() ? "in CPU memory" : "on CUDA device " + std::to_string(place.device);
}

bool IsCompact(const dlpack::Tensor& tensor) {
  return tensor.strides == nullptr || AreCompact(tensor.ndim, tensor.shape, tensor.strides, 1);
}

namespace {

Status FromDlpack(PyObject* object, const dlpack::Tensor& tensor, TensorView* view) {
  const auto dtype = DTypeFromDlpack(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes);
  if (!dtype) {
    return InvalidArgumentError("a " + TypeName(object) + " has element type (DLPack code " +
                                std::to_string(tensor.dtype.code) + ", " + std::to_string(tensor.dtype.bits) +
                                " bits), which no operation supports");
  }
  if (tensor.device.type == dlpack::kCuda) {
    view->place = {wire::DeviceClass::kCuda, tensor.device.id};
  } else if (tensor.device.type != dlpack::kCpu && tensor.device.type != dlpack::kCudaHost) {
    return UnsupportedError("a " + TypeName(object) +
                            " that is neither in CPU memory nor on a CUDA device cannot be communicated: there is no "
                            "backend for its device. Move it to the CPU first.");
  }
  if (!IsCompact(tensor)) {
    return InvalidArgumentError("a " + TypeName(object) + " is not contiguous; pass a contiguous copy");
  }
  view->data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  view->dtype = *dtype;
  SetShape(tensor.ndim, tensor.shape, view);
  return Status::Ok();
}

// Returns the dtype for a format of the buffer protocol: the character gives the kind, `item_bytes` the width.
std::optional<DType> FromFormat(std::string_view format, int64_t item_bytes) {
  if (!format.empty() && (format[0] == '<' || format[0] == '=' || format[0] == '@')) format.remove_prefix(1);
  if (format == "Zf") return DType::kComplex64;
  if (format == "Zd") return DType::kComplex128;
  if (format.size() != 1) return std::nullopt;
  static constexpr std::string_view kSigned = "bhilq";
  static constexpr std::string_view kUnsigned = "BHILQ";
  const int bits = static_cast<int>(item_bytes * 8);
  if (kSigned.find(format[0]) != std::string_view::npos) return DTypeFromDlpack(0, bits, 1);
  if (kUnsigned.find(format[0]) != std::string_view::npos) return DTypeFromDlpack(1, bits, 1);
  if (format[0] == '?') return DType::kBool;
  if (format[0] == 'e' || format[0] == 'f' || format[0] == 'd') return DTypeFromDlpack(2, bits, 1);
  return std::nullopt;
}

Status FromBuffer(PyObject* object, const Py_buffer& buffer, TensorView* view) {
  const std::string_view format = buffer.format == nullptr ? "B" : buffer.format;
  const auto dtype = FromFormat(format, buffer.itemsize);
  if (!dtype)
    return InvalidArgumentError("an array of " + TypeName(object) + " has element format '" + std::string(format) +
                                "', which no operation supports");
  static_assert(sizeof(Py_ssize_t) == sizeof(int64_t));
  const auto* shape = reinterpret_cast<const int64_t*>(buffer.shape);
  const auto* strides = reinterpret_cast<const int64_t*>(buffer.strides);
  if (strides != nullptr && !AreCompact(buffer.ndim, shape, strides, buffer.itemsize)) {
    return InvalidArgumentError("a " + TypeName(object) + " is not contiguous; pass a contiguous copy");
  }
  view->data = static_cast<std::byte*>(buffer.buf);
  view->dtype = *dtype;
  view->writable = buffer.readonly == 0;
  SetShape(buffer.ndim, shape, view);
  return Status::Ok();
}

// NumPy's bfloat16 comes from an extension and has no buffer format.
Status FromArrayInterface(PyObject* object, TensorView* view) {
  const py::object array = py::reinterpret_borrow<py::object>(object);
  const auto name = py::str(array.attr("dtype").attr("name")).cast<std::string>();
  if (name != "bfloat16") return InvalidArgumentError("an array of dtype " + name + " is not supported");
  const py::dict interface = array.attr("__array_interface__");
  if (!interface["strides"].is_none())
    return InvalidArgumentError("an array of bfloat16 is not contiguous; pass a contiguous copy");
  const py::tuple data = interface["data"];
  view->data = reinterpret_cast<std::byte*>(data[0].cast<uintptr_t>());
  view->writable = !data[1].cast<bool>();
  view->dtype = DType::kBfloat16;
  const auto shape = interface["shape"].cast<py::tuple>();
  std::vector<int64_t> extents;
  for (const py::handle extent : shape) extents.push_back(extent.cast<int64_t>());
  SetShape(static_cast<int>(extents.size()), extents.data(), view);
  return Status::Ok();
}

Status FromCapsule(PyObject* object, TensorView* view) {
  const Functions* const functions = FunctionsOf(object);
  const auto tensor = py::reinterpret_borrow<py::object>(object);
  const py::object capsule = functions != nullptr ? functions->to_capsule(tensor) : tensor.attr("__dlpack__")();
  auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) throw py::error_already_set();
  // The tensor owns the memory; the capsule only describes it.
  HC_RETURN_IF_ERROR(FromDlpack(object, managed->tensor, view));
  if (view->place == Place() || functions != nullptr) return Status::Ok();
  return UnsupportedError("a " + TypeName(object) +
                          " on a CUDA device does not tell its stream: its framework lacks DLPack's exchange table "
                          "(__dlpack_c_exchange_api__). Move the tensor to the CPU first.");
}

}  // namespace

const dlpack::ExchangeApi* FindTable(PyTypeObject* type) {
  void* table = nullptr;
  if (PyObject* capsule = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
      capsule != nullptr) {
    table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DECREF(capsule);
    if (table != nullptr && static_cast<dlpack::ExchangeApi*>(table)->header.version.major != 1) table = nullptr;
  }
  PyErr_Clear();  // a type without the table is normal
  return static_cast<dlpack::ExchangeApi*>(table);
}

void ReadWithFunctions(PyTypeObject* type, py::function to_capsule, py::function current_stream) {
  Py_INCREF(type);
  AllFunctions().push_back({type, std::move(to_capsule), std::move(current_stream)});
}

const TensorCaster::Type& TensorCaster::TypeOf(PyTypeObject* type) {
  if (type == last_type_) return last_;
  auto known = types_.find(type);
  if (known == types_.end()) {
    Type found{FindTable(type)};
    found.is_negated = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "is_neg");
    PyErr_Clear();  // a framework without negated tensors has no is_neg
    Py_INCREF(type);
    known = types_.emplace(type, found).first;
  }
  last_type_ = type;
  return last_ = known->second;
}

Status TensorCaster::Read(PyObject* object, TensorView* view) { return ReadAs(TypeOf(Py_TYPE(object)), object, view); }

bool TensorCaster::ReadInPlace(PyObject* object, TensorView* view) {
  // Called before the read: another thread may run during the call and use the same view.
  if (PyObject* const is_negated = TypeOf(Py_TYPE(object)).is_negated; is_negated != nullptr) {
    PyObject* const negated = PyObject_CallOneArg(is_negated, object);
    PyErr_Clear();  // if the call fails, the tensor may be negated
    Py_XDECREF(negated);
    if (negated != Py_False) return false;
  }
  return ReadPlainInPlace(object, view);
}

bool TensorCaster::ReadPlainInPlace(PyObject* object, TensorView* view) {
  return ReadAs(TypeOf(Py_TYPE(object)), object, view).ok() && view->writable && !IsComplex(view->dtype) &&
         view->place == Place();
}

Status TensorCaster::CurrentStream(PyObject* tensor, int device, void** stream) {
  const dlpack::ExchangeApi* const table = TypeOf(Py_TYPE(tensor)).table;
  if (table != nullptr && table->current_work_stream != nullptr) {
    if (table->current_work_stream(dlpack::kCuda, device, stream) != 0) return FetchError(tensor);
    return Status::Ok();
  }
  const Functions* const functions = FunctionsOf(tensor);
  if (functions == nullptr)
    return UnsupportedError("a " + TypeName(tensor) + " does not tell the stream of its CUDA device");
  try {
    *stream = reinterpret_cast<void*>(functions->current_stream(device).cast<uintptr_t>());
  } catch (const py::error_already_set& error) {
    return InvalidArgumentError("cannot get the stream of a " + TypeName(tensor) + ": " + error.what());
  }
  return Status::Ok();
}

Status TensorCaster::ReadAs(const Type& type, PyObject* object, TensorView* view) {
  view->writable = true;
  view->place = Place();
  if (type.table != nullptr) {
    dlpack::Tensor tensor{};
    if (type.table->tensor_from_object(object, &tensor) != 0) return FetchError(object);
    return FromDlpack(object, tensor, view);
  }
  if (PyObject_CheckBuffer(object)) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(object, &buffer, PyBUF_FORMAT | PyBUF_STRIDES) == 0) {
      const Status status = FromBuffer(object, buffer, view);
      PyBuffer_Release(&buffer);
      return status;
    }
    PyErr_Clear();  // the buffer protocol has no name for this element type; the next method may
  }
  try {
    if (py::hasattr(object, "__array_interface__")) return FromArrayInterface(object, view);
    if (py::hasattr(object, "__dlpack__")) return FromCapsule(object, view);
  } catch (const py::error_already_set& error) {
    return InvalidArgumentError("cannot read a " + TypeName(object) + " as a tensor: " + error.what());
  }
  return InvalidArgumentError("a " + TypeName(object) +
                              " is not a tensor: it has neither DLPack nor the buffer protocol");
}

}  // namespace horocache::python
