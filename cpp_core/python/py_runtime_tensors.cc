// Tensors in shared memory, and gradients.
#include <string>
#include <utility>

#include "python/gradients.h"
#include "python/py_runtime.h"

namespace py = pybind11;

namespace horocache::python {

py::list PyRuntime::SubmitGradients(const py::list& slots, int reduce_op, double prescale, double postscale,
                                    uint32_t process_set) {
  py::list others;
  InPlaceCall call{.backend = Py_None,
                   .reduce_op = reduce_op,
                   .prescale = prescale,
                   .postscale = postscale,
                   .process_set = process_set};
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
    Py_XSETREF(bucket->handle, PyLong_FromLongLong(handle));
    bucket->submitted = 1;
  }
  return others;
}

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
