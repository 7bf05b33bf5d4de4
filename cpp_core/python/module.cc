// horocache._core: the Python module of the C++ core.
#include <pybind11/pybind11.h>

#include <exception>
#include <new>

#include "python/bind.h"
#include "python/errors.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ core of horocache. Private: use horocache or a framework binding.";
  module.attr("__version__") = HC_VERSION;
  pybind11::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      horocache::python::SetOutOfMemory();
    }
  });
  horocache::python::BindGradients(module);
  horocache::python::BindKnobs(module);
  horocache::python::BindPrograms(module);
  horocache::python::BindRuntime(module);
  horocache::python::BindDag(module);
  horocache::python::BindWindows(module);
}
