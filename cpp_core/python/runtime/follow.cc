// Operations of the dependency engine that end with an operation of the runtime.
#include <memory>
#include <utility>

#include "python/dag/py_failure.h"
#include "python/runtime/py_runtime.h"

namespace py = pybind11;

namespace horocache::python {

using runtime::Operation;
using Listens = runtime::OperationTable::Listens;

namespace {

// The operation of an engine that waits for one of the runtime. Its end needs no memory.
struct Follower {
  const dag::Engine::Completer engine;  // the engine itself must not end on the driving thread
  const dag::Handle operation;
  const bool consumes;                 // else the operation runs again, to consume the handle
  const dag::FailurePtr of_its_input;  // with which it ends; null: with that of the runtime's operation, if any
  const std::shared_ptr<dag::Failure> own = std::make_shared<dag::Failure>();  // for that one

  // An operation that the program has completed itself stays as it is.
  void Go(Status status) const {
    if (!consumes) {
      static_cast<void>(engine.RunAgain(operation));
      return;
    }
    dag::FailurePtr failure = of_its_input;
    if (failure == nullptr && !status.ok()) {
      own->status = std::move(status);
      failure = own;
    }
    static_cast<void>(engine.Complete(operation, std::move(failure)));
  }
};

void OnDone(void* context, Status status) noexcept {
  const std::unique_ptr<const Follower> follower(static_cast<const Follower*>(context));
  follower->Go(std::move(status));
}

}  // namespace

void PyRuntime::Follow(int64_t handle, const dag::Engine& engine, uint64_t operation, bool consume) {
  Operation* const followed = FindOrThrow(handle);
  if (followed->automatic_number >= 0) {
    ThrowIfError(InvalidArgumentError(
        "an operation of an engine needs a name (name=...), because the order in which engines submit differs between "
        "ranks"));
  }
  auto follower =
      std::make_unique<const Follower>(Follower{engine.completer(), operation, consume, engine.Inherited(operation)});
  const Listens listens = Get().Listen(followed, {&OnDone, const_cast<Follower*>(follower.get())}, consume);
  if (listens == Listens::kHasListener)
    ThrowIfError(InvalidArgumentError("another operation of an engine ends with this handle already"));
  if (listens == Listens::kYes) {
    static_cast<void>(follower.release());
    return;
  }
  Status status;
  if (consume) {
    const auto owner =
        py::reinterpret_steal<py::object>(static_cast<PyObject*>(std::exchange(followed->owner, nullptr)));
    status = std::move(followed->status);
    Get().Recycle(followed);
  }
  follower->Go(std::move(status));
}

}  // namespace horocache::python
