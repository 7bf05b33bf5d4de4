// Python bindings for the dependency engine (dag/engine.h). An operation's exception is the cause of its failure, and
// is raised again by the wait that takes the failure.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "dag/engine.h"
#include "python/bind.h"
#include "python/dag/py_failure.h"
#include "python/dag/task_trace.h"
#include "python/errors.h"
#include "python/gil.h"
#include "python/runtime/py_runtime.h"
#include "runtime/submission/failed_input.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

using dag::Engine;
using dag::FailurePtr;
using dag::Handle;
using dag::Outcome;

// Calls a Python function; owns itself. One that goes on gets the operation's handle and the exception that it
// inherits.
class PyTask final : public dag::Task {
 public:
  PyTask(const py::function& function, std::shared_ptr<const std::string> name, bool goes_on)
      : function_(function.inc_ref().ptr()), name_(std::move(name)), goes_on_(goes_on) {}

  Outcome Run(Handle operation, const FailurePtr& inherited) override {
    AwaitEndIfFinalizing();
    const py::gil_scoped_acquire acquired;
    DropNow();
    const int64_t traced_from_ns = TracesTasks() ? NowNs() : 0;
    Outcome outcome = Call(operation, inherited);
    if (traced_from_ns > 0) TraceTask(*name_, traced_from_ns);
    return outcome;
  }

  void Ended(const FailurePtr&, bool) override { delete this; }
  std::string Name() const override { return *name_; }

 private:
  ~PyTask() { DropLater(function_); }

  Outcome Call(Handle operation, const FailurePtr& inherited) {
    const py::handle function(function_);
    try {
      if (goes_on_) {
        const py::object exception = inherited == nullptr ? py::object(py::none()) : ExceptionOf(*inherited);
        function(operation, exception);
      } else {
        function();
      }
    } catch (py::error_already_set& raised) {
      FailurePtr failure = FailureOf(py::reinterpret_borrow<py::object>(raised.value()));
      return {true, std::move(failure)};
    }
    return {!goes_on_, nullptr};
  }

  PyObject* const function_;
  const std::shared_ptr<const std::string> name_;
  const bool goes_on_;
};

// A flag of push().
enum Flag : uint8_t { kAlwaysRuns = 1, kGoesOn = 2, kAtOnce = 4, kNaive = 8 };

// An operation that can be pushed several times.
class Prepared {
 public:
  Prepared(std::shared_ptr<Engine> engine, py::function function, std::vector<Handle> reads, std::vector<Handle> writes,
           int priority, int queue, int flags, std::string name)
      : engine_(std::move(engine)),
        function_(std::move(function)),
        reads_(std::move(reads)),
        writes_(std::move(writes)),
        name_(std::make_shared<const std::string>(std::move(name))),
        how_{priority, static_cast<uint8_t>(queue), (flags & kAlwaysRuns) != 0, (flags & kAtOnce) != 0},
        flags_(flags) {}

  void Push() const {
    DropNow();
    auto* const task = new PyTask(function_, name_, (flags_ & kGoesOn) != 0);
    Status pushed;
    if ((flags_ & kNaive) != 0) {  // the operation runs here
      const py::gil_scoped_release released;
      pushed = engine_->Push(task, reads_, writes_, how_);
    } else {
      pushed = engine_->Push(task, reads_, writes_, how_);
    }
    if (pushed.ok()) return;
    task->Ended(nullptr, false);
    ThrowIfError(pushed);
  }

 private:
  const std::shared_ptr<Engine> engine_;
  const py::function function_;
  const std::vector<Handle> reads_, writes_;
  const std::shared_ptr<const std::string> name_;
  const Engine::How how_;
  const int flags_;
};

void Complete(Engine& self, Handle operation, const py::object& exception) {
  ThrowIfError(self.Complete(operation, exception.is_none() ? nullptr : FailureOf(exception)));
}

// A thread that waits for something that follows from a runtime's operations, for its lifetime. It drives the runtime
// meanwhile.
class OutsideWait final : public Engine::Helper {
 public:
  // `asks`: nothing calls Help, so that another thread must know of the wait.
  OutsideWait(PyRuntime* runtime, bool asks) : runtime_(runtime == nullptr ? nullptr : &runtime->Get()) {
    if (runtime_ == nullptr) return;
    runtime_->BeginOutsideWait();
    waits_ = true;
    if (asks) runtime_->AskDriver();
  }
  ~OutsideWait() override {
    if (waits_) runtime_->EndOutsideWait();
  }
  OutsideWait(const OutsideWait&) = delete;
  OutsideWait& operator=(const OutsideWait&) = delete;

  bool Help(const std::function<bool()>& done, int64_t deadline_ns) override {
    if (runtime_ == nullptr) return false;
    const runtime::Runtime::Helped helped = runtime_->HelpUntil(done, deadline_ns);
    waits_ = helped != runtime::Runtime::Helped::kDone;
    return helped != runtime::Runtime::Helped::kBusy;
  }
  void Wake() override {
    if (runtime_ != nullptr) runtime_->WakeHelpers();
  }

 private:
  runtime::Runtime* const runtime_;
  bool waits_ = false;
};

// Calls wait(deadline_ns, &failure, go_on, helper) without the GIL. Returns false after `timeout_s`; below 0: never.
template <typename Wait>
bool Waited(double timeout_s, PyRuntime* runtime, bool helps, Wait&& wait) {
  DropNow();
  FailurePtr failure;
  StatusOr<bool> waited = false;
  {
    OutsideWait outside(runtime, !helps);
    WithoutGil without;
    const auto go_on = [&] { return without.WithGil([] { return PyErr_CheckSignals() == 0; }); };
    waited = wait(timeout_s < 0 ? kNever : DeadlineNs(timeout_s), &failure, std::ref(go_on), &outside);
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();  // from a signal handler
  ThrowIfError(waited.status());
  if (failure != nullptr) Raise(*failure);
  return *waited;
}

bool WaitFor(Engine& self, const std::vector<Handle>& variables, double timeout_s, PyRuntime* runtime) {
  const auto wait = [&](int64_t deadline_ns, FailurePtr* failure, const Engine::GoOn& go_on, Engine::Helper* helper) {
    return self.Wait(variables, deadline_ns, failure, go_on, helper);
  };
  return Waited(timeout_s, runtime, true, wait);
}

bool WaitForAll(Engine& self, double timeout_s, PyRuntime* runtime) {
  const auto wait = [&](int64_t deadline_ns, FailurePtr* failure, const Engine::GoOn& go_on, Engine::Helper*) {
    return self.WaitAll(deadline_ns, failure, go_on);
  };
  return Waited(timeout_s, runtime, false, wait);
}

// Closing waits for threads that may need the GIL.
void Delete(Engine* engine) {
  const py::gil_scoped_release released;
  delete engine;
}

const char* NameOf(Engine::Pending::State state) {
  switch (state) {
    case Engine::Pending::State::kWaiting:
      return "waiting";
    case Engine::Pending::State::kReady:
      return "ready";
    case Engine::Pending::State::kRunning:
      return "running";
  }
  return "";
}

py::list PendingOf(const Engine& self) {
  py::list list;
  for (const Engine::Pending& each : self.PendingOperations()) {
    const double seconds = each.started_ns == 0 ? 0.0 : static_cast<double>(NowNs() - each.started_ns) / 1e9;
    list.append(py::make_tuple(each.name, NameOf(each.state), seconds));
  }
  return list;
}

py::dict CountersOf(const Engine& self) {
  const Engine::Counters counters = self.counters();
  py::dict dict;
  dict["pushed"] = counters.pushed;
  dict["ended"] = counters.ended;
  dict["failed"] = counters.failed;
  dict["skipped"] = counters.skipped;
  dict["allocations"] = counters.allocations;
  dict["contended"] = counters.contended;
  dict["variables"] = counters.variables;
  dict["pending"] = counters.pending;
  return dict;
}

py::object TakeFailure(Engine& self, Handle variable) {
  const FailurePtr failure = self.TakeFailure(variable);
  return failure == nullptr ? py::object(py::none()) : ExceptionOf(*failure);
}

}  // namespace

void BindDag(py::module_& module) {
  module.def(
      "with_failed_input",
      [](std::string reason, const py::function& function) {
        const runtime::FailedInput failed(std::move(reason));
        return py::object(function());
      },
      py::arg("reason"), py::arg("function"));
  module.def("drop_nothing_more", &DropNothingMore);
  module.def("forget_parents_engines", [] {
    DropNothingOfParent();
    TraceNoTasksOfParent();
  });
  py::class_<Engine, std::shared_ptr<Engine>> engine(module, "Engine", py::is_final());
  engine.attr("ALWAYS_RUNS") = static_cast<int>(kAlwaysRuns);
  engine.attr("GOES_ON") = static_cast<int>(kGoesOn);
  engine.attr("AT_ONCE") = static_cast<int>(kAtOnce);
  engine.attr("NAIVE") = static_cast<int>(kNaive);
  engine
      .def(py::init([](std::vector<int> threads, std::string name) {
             return std::shared_ptr<Engine>(new Engine({std::move(threads), std::move(name)}), Delete);
           }),
           py::arg("threads"), py::arg("name"))
      .def("add_variable", &Engine::AddVariable, py::arg("carries"))
      .def(
          "delete_variable", [](Engine& self, Handle variable) { ThrowIfError(self.DeleteVariable(variable)); },
          py::arg("variable"))
      .def("version", &Engine::Version, py::arg("variable"))
      .def("is_used", &Engine::IsUsed, py::arg("variable"))
      .def("is_idle", &Engine::IsIdle, py::arg("variable"))
      .def("take_failure", &TakeFailure, py::arg("variable"))
      .def("complete", &Complete, py::arg("operation"), py::arg("exception"))
      .def(
          "follow",
          [](const Engine& self, PyRuntime& runtime, int64_t handle, Handle operation, bool consume) {
            runtime.Follow(handle, self, operation, consume);
          },
          py::arg("runtime"), py::arg("handle"), py::arg("operation"), py::arg("consume"))
      .def("wait", &WaitFor, py::arg("variables"), py::arg("timeout_s"), py::arg("runtime"))
      .def("wait_all", &WaitForAll, py::arg("timeout_s"), py::arg("runtime"))
      .def(
          "close",
          [](Engine& self, double timeout_s) {
            const WithoutGil without;
            return self.Close(DeadlineNs(timeout_s));
          },
          py::arg("timeout_s"))
      .def("leak", [](const std::shared_ptr<Engine>& self) { new std::shared_ptr<Engine>(self); })
      .def("counters", &CountersOf)
      .def("pending", &PendingOf);
  py::class_<Prepared>(module, "PreparedOperation", py::is_final())
      .def(py::init<std::shared_ptr<Engine>, py::function, std::vector<Handle>, std::vector<Handle>, int, int, int,
                    std::string>(),
           py::arg("engine"), py::arg("function"), py::arg("reads"), py::arg("writes"), py::arg("priority"),
           py::arg("queue"), py::arg("flags"), py::arg("name"))
      .def("push", &Prepared::Push);
}

}  // namespace horocache::python
