#include "python/dag/py_failure.h"

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "python/errors.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

// References to drop. Never destroyed, because threads may outlive the interpreter.
struct Dropped {
  Mutex mutex;
  std::vector<PyObject*> objects HC_GUARDED_BY(mutex);
  std::atomic<bool> asked{false};  // DropNow will be called by the main thread
};

Dropped* dropped = new Dropped;

Dropped& TheDropped() { return *dropped; }

std::atomic<bool> at_end{false};
pid_t asking_process = 0;  // a child of fork has the parent's pending calls, too

int DropPending(void*) {
  if (getpid() != asking_process) return 0;
  TheDropped().asked = false;
  DropNow();
  return 0;
}

}  // namespace

void DropNow() {
  std::vector<PyObject*> objects;
  {
    const MutexLock lock(TheDropped().mutex);
    if (TheDropped().objects.empty()) return;
    objects = std::exchange(TheDropped().objects, {});
  }
  for (PyObject* const object : objects) Py_DECREF(object);
}

void DropLater(PyObject* object) {
  Dropped& to_drop = TheDropped();
  {
    const MutexLock lock(to_drop.mutex);
    try {
      to_drop.objects.push_back(object);
    } catch (const std::bad_alloc&) {  // the object is never freed
      return;
    }
  }
  if (at_end.load() || to_drop.asked.exchange(true)) return;
  asking_process = getpid();
  if (Py_AddPendingCall(&DropPending, nullptr) != 0) to_drop.asked = false;
}

void DropNothingOfParent() { dropped = new Dropped; }

void DropNothingMore() { at_end = true; }

namespace {

// An exception of the program may fail to describe itself.
std::string Described(const py::object& exception) {
  const auto text = py::reinterpret_steal<py::object>(PyObject_Repr(exception.ptr()));
  if (text) {
    const auto bytes =
        py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
    if (bytes) return {PyBytes_AS_STRING(bytes.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
  }
  PyErr_Clear();
  return Py_TYPE(exception.ptr())->tp_name;
}

}  // namespace

dag::FailurePtr FailureOf(py::object exception) {
  std::string text = Described(exception);
  return std::make_shared<const dag::Failure>(
      dag::Failure{{StatusCode::kAborted, std::move(text)},
                   {exception.release().ptr(), [](void* held) { DropLater(static_cast<PyObject*>(held)); }}});
}

py::object ExceptionOf(const dag::Failure& failure) {
  if (failure.cause != nullptr) {
    return py::reinterpret_borrow<py::object>(static_cast<PyObject*>(failure.cause.get()));
  }
  try {
    ThrowIfError(failure.status);
  } catch (py::error_already_set& raised) {
    return py::reinterpret_borrow<py::object>(raised.value());
  }
  return py::none();
}

void Raise(const dag::Failure& failure) {
  const py::object exception = ExceptionOf(failure);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw py::error_already_set();
}

}  // namespace horocache::python
