// The pieces of the Python module; one function per bind_*.cc.
#pragma once

#include <pybind11/pybind11.h>

#include "base/knobs.h"

namespace horocache::python {

// Adds GradientBucket, GradientSlot and GradientQueue (see gradients.h), and these functions:
// * gather_gradients(bucket): the tensors to submit, or None if a gradient cannot be submitted as it is.
// * rearm_gradients(buckets, passes): prepares the buckets for the next step.
// * grad_references(param): reference count of a gradient.
// * view_is_intact(slot): true if the slot has a bucket view with the memory that was allocated for it.
// * view_is_free(slot): true if, besides, only the slot uses it.
void BindGradients(pybind11::module_& module);
// Adds Engine (see dag/engine.h) and with_failed_input(reason, function): calls the function; the operations that it
// submits fail on all ranks.
void BindDag(pybind11::module_& module);
void BindKnobs(pybind11::module_& module);
// Adds run_program(packed, inputs, outputs, ...), which runs a program with all its ranks in this process.
void BindPrograms(pybind11::module_& module);
void BindRuntime(pybind11::module_& module);
// Adds UserCalls and UserCall: a backend's part in a process set, for the thread of the program that runs it.
void BindUserCalls(pybind11::module_& module);
// Adds Window and WindowBlock (see moe/window.h), allocate_window and connect_window.
void BindWindows(pybind11::module_& module);

pybind11::dict KnobsForPython(const Knobs& knobs);

}  // namespace horocache::python
