// The pieces of the Python module; one function per bind_*.cc.
#pragma once

#include <pybind11/pybind11.h>

#include "base/knobs.h"

namespace horocache::python {

void BindKnobs(pybind11::module_& module);
void BindRuntime(pybind11::module_& module);
void BindSimulation(pybind11::module_& module);

pybind11::dict KnobsForPython(const Knobs& knobs);

}  // namespace horocache::python
