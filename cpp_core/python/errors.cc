#include "python/errors.h"

#include <new>
#include <string>

#include "base/text.h"

namespace py = pybind11;

namespace horocache::python {

namespace {

constexpr const char* kMemoryRanOut =
    "memory ran out on this rank; raise its limit (ulimit -v, the batch system's, the container's), or have it use "
    "less";

PyObject* out_of_memory = nullptr;  // a preallocated OutOfMemoryError; never freed

py::object MakeError(StatusCode code, const std::string& text) {
  const py::str message(PrintableLines(text));  // names and messages from other ranks may contain any bytes
  return py::module_::import("horocache.errors").attr("error_for")(static_cast<int>(code), message);
}

void Raise(PyObject* error) { PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error); }

void RaiseOutOfMemory() { out_of_memory == nullptr ? static_cast<void>(PyErr_NoMemory()) : Raise(out_of_memory); }

// Sets the exception for the code, or the exception that Python raises while it is made.
void SetError(StatusCode code, const std::string& text) {
  try {
    Raise(MakeError(code, text).ptr());
  } catch (py::error_already_set& raised) {
    if (raised.matches(PyExc_MemoryError)) {
      RaiseOutOfMemory();
    } else {
      raised.restore();
    }
  } catch (const std::bad_alloc&) {
    RaiseOutOfMemory();
  }
}

}  // namespace

void ThrowIfError(const Status& status) {
  if (status.ok()) return;
  if (status.message() == kNoMemory) {
    SetOutOfMemory();
  } else {
    SetError(status.code(), status.message());
  }
  throw py::error_already_set();
}

void SetOutOfMemory() {
  try {
    SetError(StatusCode::kOutOfMemory, kMemoryRanOut);
  } catch (const std::bad_alloc&) {  // not even enough memory for the text
    RaiseOutOfMemory();
  }
}

void PrepareOutOfMemory() {
  if (out_of_memory == nullptr) out_of_memory = MakeError(StatusCode::kOutOfMemory, kMemoryRanOut).release().ptr();
}

}  // namespace horocache::python
