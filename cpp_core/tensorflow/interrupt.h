// Handles Ctrl-C while Python's main thread waits in a kernel.
#pragma once

namespace horocache::tensorflow {

// Runs Python's signal handlers if this is Python's main thread. Returns true if one raised; the exception is kept for
// RaiseInterrupt, because TensorFlow would replace it by its own. Returns false without Python and on other threads.
bool InterruptPython();

// Raises the kept exception, if there is one. Requires the GIL.
void RaiseInterrupt();

}  // namespace horocache::tensorflow
