// Converts a Status to the Python exception of horocache.errors for its code.
#pragma once

#include <pybind11/pybind11.h>

#include "base/status.h"

namespace horocache::python {

// Throws if the status is not ok. Requires the GIL.
void ThrowIfError(const Status& status);

// Sets OutOfMemoryError, for a caught std::bad_alloc. Requires the GIL.
void SetOutOfMemory();

// Allocates the exception that SetOutOfMemory sets if there is not enough memory for a new one.
void PrepareOutOfMemory();

}  // namespace horocache::python
