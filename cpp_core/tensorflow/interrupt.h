// Ctrl-C while a kernel waits that was called from Python's main thread.
#pragma once

namespace horocache::tensorflow {

// Runs Python's signal handlers if this is its main thread. True if one raised; the exception is kept for
// RaiseInterrupt, as TensorFlow would put its own in its place. False without Python, and from other threads.
bool InterruptPython();

// Raises what was kept, if anything. With Python's lock.
void RaiseInterrupt();

}  // namespace horocache::tensorflow
