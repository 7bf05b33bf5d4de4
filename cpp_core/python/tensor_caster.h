// Reads a Python tensor's memory, dtype and shape without any framework's headers.
//
// Tries in this order: the DLPack C exchange table of the tensor's type (torch), the buffer protocol (NumPy),
// __array_interface__ for NumPy's bfloat16 extension type, the functions of a framework without the table (torch before
// 2.10), __dlpack__(). The tensor is borrowed: the caller keeps it alive.
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

// Where a tensor's memory is.
struct Place {
  wire::DeviceClass device_class = wire::DeviceClass::kCpu;
  int device = 0;  // number of the CUDA device
  bool operator==(const Place&) const = default;
};
// "in CPU memory", "on CUDA device 1".
std::string PlaceName(const Place& place);

struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  Place place;
  std::vector<int64_t> shape;
  int64_t count = 1;
  bool writable = true;
};

// Returns a type's DLPack exchange table; null if it has none.
const dlpack::ExchangeApi* FindTable(PyTypeObject* type);
// Gives the functions with which tensors of `type`, and of types derived from it, are read where they have no table:
// to_capsule(tensor) returns DLPack's capsule and lets no stream wait; current_stream(device) returns the handle of the
// stream on which the framework queues this thread's work. Requires the GIL.
void ReadWithFunctions(PyTypeObject* type, pybind11::function to_capsule, pybind11::function current_stream);
// True if the elements are contiguous in row-major order.
bool IsCompact(const dlpack::Tensor& tensor);

class TensorCaster {
 public:
  // Requires the GIL. Fails with kInvalidArgument if the object is not a tensor, is not contiguous or has a dtype that
  // DType lacks, and with kUnsupported for a device without a backend.
  Status Read(PyObject* object, TensorView* view);
  // Reads the tensor. Returns true if a result may be stored in its memory by the processor, and the memory has exactly
  // its values. False if the tensor is read-only, may be the negative or the conjugate of its memory, is not in the
  // host's memory, or cannot be read.
  bool ReadInPlace(PyObject* object, TensorView* view);
  // The stream on which the tensor's framework queues this thread's work for a CUDA device.
  Status CurrentStream(PyObject* tensor, int device, void** stream);
  // The same as ReadInPlace for a tensor whose memory is known not to be negated.
  bool ReadPlainInPlace(PyObject* object, TensorView* view);

 private:
  struct Type {
    const dlpack::ExchangeApi* table = nullptr;
    PyObject* is_negated = nullptr;  // the method is_neg; null if tensors of the type cannot be negated
  };
  // Examines each type once.
  const Type& TypeOf(PyTypeObject* type);
  Status ReadAs(const Type& type, PyObject* object, TensorView* view);

  // Holds references to the types, which in practice live as long as the interpreter.
  std::unordered_map<PyTypeObject*, Type> types_;
  PyTypeObject* last_type_ = nullptr;  // saves the look-up, because most tensors are of one type
  Type last_;
};

}  // namespace horocache::python
