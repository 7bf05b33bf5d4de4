// A Status as the Python exception of horocache.errors that stands for its code.
#pragma once

#include <pybind11/pybind11.h>

#include "base/status.h"

namespace horocache::python {

// Throws if not ok. The GIL is held.
void ThrowIfError(const Status& status);

// Sets OutOfMemoryError, for a std::bad_alloc that has been caught. The GIL is held.
void SetOutOfMemory();

// Makes the exception that SetOutOfMemory sets where there is no memory for another.
void PrepareOutOfMemory();

}  // namespace horocache::python
