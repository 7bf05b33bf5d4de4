// horocache._core: the core as Python sees it.
#include <pybind11/pybind11.h>

#include "python/bind.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ core of horocache. Private: use horocache or a framework binding.";
  module.attr("__version__") = HC_VERSION;
  horocache::python::BindGradients(module);
  horocache::python::BindKnobs(module);
  horocache::python::BindPrograms(module);
  horocache::python::BindRuntime(module);
  horocache::python::BindSimulation(module);
}
