#include "python/errors.h"

namespace py = pybind11;

namespace horocache::python {

void ThrowIfError(const Status& status) {
  if (status.ok()) return;
  // Names may hold bytes that are not UTF-8; messages escape them already, this is the last net.
  const py::object message = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      status.message().data(), static_cast<Py_ssize_t>(status.message().size()), "backslashreplace"));
  const py::object error =
      py::module_::import("horocache.errors").attr("error_for")(static_cast<int>(status.code()), message);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

}  // namespace horocache::python
