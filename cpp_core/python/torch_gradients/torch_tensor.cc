#include "python/torch_gradients/torch_tensor.h"

#include <cstdint>

#include "python/tensor_caster.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

// Interned attribute names.
PyObject* grad_text;
PyObject* version_text;
PyObject* is_neg_text;
PyObject* requires_grad_text;
PyObject* is_sparse_text;
PyObject* untyped_storage_text;
PyObject* resizable_text;
PyObject* cdata_text;
PyObject* copy_text;

PyObject* Intern(const char* text) {
  PyObject* object = PyUnicode_InternFromString(text);
  if (object == nullptr) throw py::error_already_set();
  return object;
}

// True if `answer` is `expected`; false for null, which is a call that failed with an error. Takes the reference.
bool Is(PyObject* expected, PyObject* answer) {
  Py_XDECREF(answer);
  return answer == expected;
}

}  // namespace

void InternNamesOfTensors() {
  grad_text = Intern("grad");
  version_text = Intern("_version");
  is_neg_text = Intern("is_neg");
  requires_grad_text = Intern("requires_grad");
  is_sparse_text = Intern("is_sparse");
  untyped_storage_text = Intern("untyped_storage");
  resizable_text = Intern("resizable");
  cdata_text = Intern("_cdata");
  copy_text = Intern("copy_");
}

PyObject* GradOf(PyObject* param) { return PyObject_GetAttr(param, grad_text); }

bool SetGrad(PyObject* param, PyObject* grad) { return PyObject_SetAttr(param, grad_text, grad) == 0; }

long long VersionOf(PyObject* tensor) {
  PyObject* number = PyObject_GetAttr(tensor, version_text);
  if (number == nullptr) return -1;
  const long long version = PyLong_AsLongLong(number);
  Py_DECREF(number);
  return version;
}

bool Describe(KnownType* known, PyObject* tensor, dlpack::Tensor* out) {
  if (Py_TYPE(tensor) != known->type) {
    known->type = Py_TYPE(tensor);  // no reference: in practice, types live as long as the interpreter
    known->table = FindTable(known->type);
  }
  return known->table != nullptr && known->table->tensor_from_object(tensor, out) == 0;
}

long long AddressOf(const dlpack::Tensor& tensor) {
  return static_cast<long long>(reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset);
}

bool SameKind(const dlpack::Tensor& a, const dlpack::Tensor& b) {
  if (a.ndim != b.ndim || a.dtype.code != b.dtype.code || a.dtype.bits != b.dtype.bits) return false;
  if (a.device.type != b.device.type || a.device.id != b.device.id) return false;
  for (int i = 0; i < a.ndim; ++i) {
    if (a.shape[i] != b.shape[i]) return false;
  }
  return true;
}

bool SameStrides(const dlpack::Tensor& a, const dlpack::Tensor& b) {
  if (a.strides == nullptr || b.strides == nullptr) return false;
  for (int i = 0; i < a.ndim; ++i) {
    if (a.shape[i] != 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

bool IsPlain(PyObject* tensor) { return Is(Py_False, PyObject_CallMethodNoArgs(tensor, is_neg_text)); }
bool RequiresNoGrad(PyObject* tensor) { return Is(Py_False, PyObject_GetAttr(tensor, requires_grad_text)); }
bool IsSparse(PyObject* tensor) { return Is(Py_True, PyObject_GetAttr(tensor, is_sparse_text)); }
PyObject* StorageOf(PyObject* tensor) { return PyObject_CallMethodNoArgs(tensor, untyped_storage_text); }
bool IsResizable(PyObject* storage) { return Is(Py_True, PyObject_CallMethodNoArgs(storage, resizable_text)); }
PyObject* AddressOfStorage(PyObject* storage) { return PyObject_GetAttr(storage, cdata_text); }

bool CopyValues(PyObject* to, PyObject* from) {
  PyObject* done = PyObject_CallMethodOneArg(to, copy_text, from);
  Py_XDECREF(done);
  return done != nullptr;
}

}  // namespace horocache::python
