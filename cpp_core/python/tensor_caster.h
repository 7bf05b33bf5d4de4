// Reads a Python tensor's memory, dtype and shape without any framework's headers.
//
// In this order: the DLPack C exchange table of the tensor's type (torch), the buffer protocol (NumPy),
// __array_interface__ for NumPy's bfloat16 extension type, __dlpack__(). The tensor is borrowed: the caller keeps it
// alive.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "python/dlpack_abi.h"
#include "wire/message.h"

namespace horocache::python {

struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  wire::DeviceClass device_class = wire::DeviceClass::kCpu;
  std::vector<int64_t> shape;
  int64_t count = 1;
  bool writable = true;
};

// The exchange table of a type; null where the type has none.
const dlpack::ExchangeApi* FindTable(PyTypeObject* type);
// Whether its elements lie one after the other in row-major order.
bool IsCompact(const dlpack::Tensor& tensor);

class TensorCaster {
 public:
  // The GIL is held. kInvalidArgument for what is no tensor, not contiguous, or of a dtype that DType lacks;
  // kUnsupported for a device without backend.
  Status Read(PyObject* object, TensorView* view);
  // True if a result may be stored in the memory that was read, and nothing but its bits makes the values: false for
  // what is read-only, and for tensors that may be the negative or the conjugate of their memory. False, too, where
  // Read fails.
  bool ReadInPlace(PyObject* object, TensorView* view);
  // The same for a tensor that is known to have its values in its memory.
  bool ReadPlainInPlace(PyObject* object, TensorView* view);

 private:
  struct Type {
    const dlpack::ExchangeApi* table = nullptr;
    PyObject* is_negated = nullptr;  // the method that tells; null where tensors cannot be
  };
  // Looked at once for each type.
  const Type& TypeOf(PyTypeObject* type);
  Status ReadAs(const Type& type, PyObject* object, TensorView* view);

  // Types live as long as the interpreter for all practical purposes, but hold a reference.
  std::unordered_map<PyTypeObject*, Type> types_;
  PyTypeObject* last_type_ = nullptr;  // most tensors are of one type
  Type last_;
};

}  // namespace horocache::python
