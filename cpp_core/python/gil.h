// The GIL, for threads that may need it when the interpreter has begun to end.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <utility>

namespace horocache::python {

// Sleeps for ever if the interpreter is finalizing: Python would end a thread that takes the GIL then, in the middle of
// C++ code.
inline void AwaitEndIfFinalizing() {
#if PY_VERSION_HEX >= 0x030d0000
  const bool at_end = Py_IsFinalizing() != 0;
#else
  const bool at_end = _Py_IsFinalizing() != 0;
#endif
  while (at_end) pause();
}

// Releases the GIL for its lifetime; the destructor always takes it again.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { Restore(); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // Calls `act` with the GIL. `act` must not throw.
  template <typename Act>
  bool WithGil(Act&& act) {
    Restore();
    const bool answer = std::forward<Act>(act)();
    state_ = PyEval_SaveThread();
    return answer;
  }

 private:
  void Restore() {
    AwaitEndIfFinalizing();
    PyEval_RestoreThread(state_);
  }

  PyThreadState* state_;
};

}  // namespace horocache::python
