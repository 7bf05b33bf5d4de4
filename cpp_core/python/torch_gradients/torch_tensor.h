// Reads torch's tensors for the gradient engine, without torch's headers: by attributes, whose names are interned, and
// by DLPack descriptions. All functions require the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "python/dlpack_abi.h"

namespace horocache::python {

// The type of the last tensor that was examined, and the type's DLPack exchange table; null: it has none.
struct KnownType {
  PyTypeObject* type;
  const dlpack::ExchangeApi* table;
};

// Returns a new reference; null with an error set.
PyObject* GradOf(PyObject* param);
// Makes `grad` the parameter's gradient. Returns false with an error set.
bool SetGrad(PyObject* param, PyObject* grad);
// Returns -1 with an error set if the tensor has no version.
long long VersionOf(PyObject* tensor);

// Gets the DLPack description of a tensor from its type's exchange table. Returns false, perhaps with an error set, if
// that fails; a sparse tensor, for example, has no description.
bool Describe(KnownType* known, PyObject* tensor, dlpack::Tensor* out);
long long AddressOf(const dlpack::Tensor& tensor);
// True if shape, element type and device are equal.
bool SameKind(const dlpack::Tensor& a, const dlpack::Tensor& b);
// True if the strides are equal, except for dimensions of size 1. Requires that the shapes are equal.
bool SameStrides(const dlpack::Tensor& a, const dlpack::Tensor& b);

// True if the memory has the tensor's values, not their negatives. False, perhaps with an error set, if that is
// unknown; likewise for the next two functions.
bool IsPlain(PyObject* tensor);
bool RequiresNoGrad(PyObject* tensor);
bool IsSparse(PyObject* tensor);
// Returns the tensor's storage as a new reference; null with an error set.
PyObject* StorageOf(PyObject* tensor);
// True if torch allocated the storage. The memory of a NumPy array, for example, belongs to the array.
bool IsResizable(PyObject* storage);
// Returns the address by which torch knows the storage, as a new reference; null with an error set.
PyObject* AddressOfStorage(PyObject* storage);
// Calls `to`.copy_(`from`). Returns false with an error set.
bool CopyValues(PyObject* to, PyObject* from);

// Interns the names; called once.
void InternNamesOfTensors();

}  // namespace horocache::python
