// Tensors in memory that the ranks of the host share.
#include <string>
#include <utility>

#include "python/runtime/py_runtime.h"

namespace py = pybind11;

namespace horocache::python {

py::object PyRuntime::Empty(std::vector<int64_t> shape, const std::string& dtype) {
  const auto type = DTypeFromName(dtype);
  if (!type) ThrowIfError(InvalidArgumentError("there is no element type '" + dtype + "'"));
  PyResult out;
  int64_t bytes = static_cast<int64_t>(DTypeBytes(*type));
  for (const int64_t extent : shape) {
    const bool good = extent >= 0 && !__builtin_mul_overflow(bytes, extent, &bytes);
    if (!good) ThrowIfError(InvalidArgumentError("no tensor has a dimension of " + std::to_string(extent)));
  }
  out.memory = Get().Allocate(bytes);
  if (out.memory == nullptr)
    ThrowIfError({StatusCode::kOutOfMemory, "no memory for a tensor of " + std::to_string(bytes) + " bytes"});
  out.result.dtype = *type;
  out.result.shape = std::move(shape);
  out.result.size_bytes = bytes;
  return py::cast(std::move(out));
}

bool PyRuntime::IsShared(const py::object& tensor) {
  ThrowIfError(caster_.Read(tensor.ptr(), &view_));
  return Get().IsShared(view_.data);
}

}  // namespace horocache::python
