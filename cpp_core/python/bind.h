// The pieces of the Python module; one function per bind_*.cc.
#pragma once

#include <pybind11/pybind11.h>

#include "base/knobs.h"

namespace horocache::python {

// GradientBucket, GradientSlot and GradientQueue; and gather_gradients(bucket), the tensors to submit, or None if one
// of them needs a closer look; rearm_gradients(buckets, passes), for the next step; grad_references(param),
// grad_is_alone(slot) and place_is_free(slot), which tell who else has a gradient or the place of one; and
// is_at_place(slot). See gradients.h.
void BindGradients(pybind11::module_& module);
void BindKnobs(pybind11::module_& module);
// run_program(packed, inputs, outputs, ...): a program with all its ranks in this process.
void BindPrograms(pybind11::module_& module);
void BindRuntime(pybind11::module_& module);
void BindSimulation(pybind11::module_& module);

pybind11::dict KnobsForPython(const Knobs& knobs);

}  // namespace horocache::python
