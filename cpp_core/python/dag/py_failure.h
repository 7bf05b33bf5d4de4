// Failures of the dependency engine as Python exceptions, and Python objects that threads without the GIL drop.
#pragma once

#include <pybind11/pybind11.h>

#include "dag/graph.h"

namespace horocache::python {

// The failure whose cause is this exception. Requires the GIL, as the next three do.
dag::FailurePtr FailureOf(pybind11::object exception);
// The exception of a failure.
pybind11::object ExceptionOf(const dag::Failure& failure);
// Raises it.
void Raise(const dag::Failure& failure);
// Drops the references that DropLater has taken over.
void DropNow();

// Takes over a reference, which a later call that holds the GIL drops: of DropNow, or of the main thread, soon. Any
// thread may call it, with or without the GIL. Does not throw.
void DropLater(PyObject* object);
// For the child of a fork: another thread of the parent may have held the mutex.
void DropNothingOfParent();
// For the end of the interpreter: what is dropped later stays.
void DropNothingMore();

}  // namespace horocache::python
