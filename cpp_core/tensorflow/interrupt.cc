#include "tensorflow/interrupt.h"

#include <dlfcn.h>

namespace horocache::tensorflow {
namespace {

template <typename Function>
Function* Find(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// The part of Python's C interface that this needs. The library is not linked to any Python.
struct Python {
  int (*ensure)() = Find<int()>("PyGILState_Ensure");
  void (*release)(int) = Find<void(int)>("PyGILState_Release");
  int (*initialized)() = Find<int()>("Py_IsInitialized");
  int (*check_signals)() = Find<int()>("PyErr_CheckSignals");
  void (*fetch)(void**, void**, void**) = Find<void(void**, void**, void**)>("PyErr_Fetch");
  void (*restore)(void*, void*, void*) = Find<void(void*, void*, void*)>("PyErr_Restore");
  bool complete() const {
    return ensure != nullptr && release != nullptr && initialized != nullptr && check_signals != nullptr &&
           fetch != nullptr && restore != nullptr;
  }
};

const Python& ThePython() {
  static const Python python;
  return python;
}

// The kept exception: type, value and traceback. Guarded by the GIL.
void* g_kept[3] = {};

}  // namespace

bool InterruptPython() {
  const Python& python = ThePython();
  if (!python.complete() || python.initialized() == 0) return false;
  const int state = python.ensure();
  const bool raised = python.check_signals() != 0;
  if (raised) python.fetch(&g_kept[0], &g_kept[1], &g_kept[2]);
  python.release(state);
  return raised;
}

void RaiseInterrupt() {
  if (g_kept[0] == nullptr) return;
  ThePython().restore(g_kept[0], g_kept[1], g_kept[2]);
  for (void*& each : g_kept) each = nullptr;
}

}  // namespace horocache::tensorflow
