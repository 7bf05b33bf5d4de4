// A Status as the Python exception of horocache.errors that stands for its code.
#pragma once

#include <pybind11/pybind11.h>

#include "base/status.h"

namespace horocache::python {

// Throws if not ok. The GIL is held.
void ThrowIfError(const Status& status);

}  // namespace horocache::python
