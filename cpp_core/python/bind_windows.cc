// Python bindings for the windows of one-sided exchanges (moe/window.h).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "python/bind.h"
#include "python/errors.h"
#include "python/gil.h"
#include "python/runtime/py_runtime.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

using moe::Exchange;
using moe::Window;
using runtime::WindowBlock;

// Names of Exchange::Act, Python's events.
const char* NameOf(Exchange::Act act) {
  switch (act) {
    case Exchange::Act::kSend:
      return "send";
    case Exchange::Act::kTake:
      return "take";
    case Exchange::Act::kServe:
      return "serve";
    default:
      return "leave";
  }
}

int64_t ToNs(double seconds) {
  if (!(seconds < static_cast<double>(moe::kForever) / kNsPerS)) return moe::kForever;
  return static_cast<int64_t>(seconds * kNsPerS);
}

// A connected window, and the runtime that it belongs to.
class PyWindow {
 public:
  PyWindow(py::object runtime, std::shared_ptr<Window> window)
      : runtime_(std::move(runtime)), window_(std::move(window)) {}

  void Enter(std::vector<int32_t> rows, uint32_t tag, std::pair<int64_t, int64_t> row_bytes, int epsilon, double tau_s,
             double limit_s, bool wait_for_room) {
    if (rows.size() != window_->geometry().hosts.size())
      throw py::value_error("rows need one number for each rank of the window");
    Run([&](const Window::Check& check) {
      return window_->Enter({std::move(rows), epsilon, ToNs(tau_s), ToNs(limit_s), wait_for_room}, tag,
                            {row_bytes.first, row_bytes.second}, check);
    });
  }

  // Returns (event, peer, rows, batch, result).
  py::tuple Next() {
    StatusOr<Window::Step> step = Status(StatusCode::kInternal, "");
    Run([&](const Window::Check& check) {
      step = window_->Next(check);
      return step.status();
    });
    return py::make_tuple(NameOf(step->act), step->peer, step->rows, Memory(step->batch), Memory(step->result));
  }

  void Fail(const std::string& why) { window_->Fail({StatusCode::kInputFailed, why}); }
  void Close() {
    const py::gil_scoped_release released;
    window_->Close();
  }

  std::vector<int> Outcomes() const {
    return Each<int>([this](int rank) { return static_cast<int>(window_->exchange().outcome(rank)); });
  }
  std::vector<double> Waited() const {
    return Each<double>([this](int rank) { return static_cast<double>(window_->waited_ns(rank)) / kNsPerS; });
  }
  std::vector<bool> Served() const {
    return Each<bool>([this](int rank) { return window_->exchange().Served(rank); });
  }
  std::string CallsElsewhere() { return Runtime().CallsElsewhere(*window_); }
  const std::shared_ptr<Window>& window() const { return window_; }

 private:
  // Calls `body`, which may wait, without the GIL.
  template <typename Body>
  void Run(Body&& body) {
    runtime::Runtime& runtime = Runtime();
    const Knobs& knobs = runtime.knobs();
    int64_t report_ns = knobs.stall_check_disable ? kNever : DeadlineNs(knobs.stall_check_time_seconds);
    Status status;
    {
      WithoutGil without;
      const auto check = [&]() -> Status {
        if (NowNs() >= report_ns) {
          report_ns = kNever;
          runtime.ReportSlowExchange(window_->DescribeWait() + runtime.CallsElsewhere(*window_));
        }
        if (!without.WithGil([] { return PyErr_CheckSignals() == 0; }))
          return {StatusCode::kAborted, "rank " + std::to_string(runtime.identity().rank) + " was interrupted"};
        return runtime.CheckExchange();
      };
      status = body(std::cref(check));
    }
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();  // from a signal handler
    ThrowIfError(status);
  }

  runtime::Runtime& Runtime() { return runtime_.cast<PyRuntime&>().Get(); }
  static py::object Memory(std::span<std::byte> memory) {
    return py::memoryview::from_memory(memory.data(), static_cast<py::ssize_t>(memory.size()));
  }
  template <typename T>
  std::vector<T> Each(const std::function<T(int)>& value) const {
    std::vector<T> values;
    for (int rank = 0; rank < window_->geometry().ranks(); ++rank) values.push_back(value(rank));
    return values;
  }

  py::object runtime_;
  std::shared_ptr<Window> window_;
};

WindowBlock AllocateWindow(PyRuntime& self, std::optional<uint32_t> process_set, std::vector<bool> hosts,
                           uint32_t depth, int64_t batch_bytes, int64_t result_bytes) {
  const size_t members = process_set ? self.Get().RanksOf(*process_set).size() : 1;
  if (hosts.size() != members) throw py::value_error("hosts need one entry for each rank of the process set");
  if (depth < 1 || batch_bytes < 0 || result_bytes < 0) throw py::value_error("a window of this depth or size");
  StatusOr<WindowBlock> block = [&] {
    const py::gil_scoped_release released;  // the kernel clears the memory
    return self.Get().AllocateWindow(process_set, {std::move(hosts), depth, batch_bytes, result_bytes});
  }();
  ThrowIfError(block.status());
  return std::move(*block);
}

PyWindow ConnectWindow(const py::object& self, const WindowBlock& block, const std::vector<int64_t>& offsets) {
  StatusOr<std::shared_ptr<Window>> window = Status(StatusCode::kInternal, "");
  {
    WithoutGil without;
    window = self.cast<PyRuntime&>().Get().ConnectWindow(
        block, offsets, [&] { return without.WithGil([] { return PyErr_CheckSignals() == 0; }); });
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();  // from a signal handler
  ThrowIfError(window.status());
  return {self, std::move(*window)};
}

}  // namespace

void BindWindows(py::module_& module) {
  py::class_<WindowBlock>(module, "WindowBlock", py::is_final()).def_readonly("offset", &WindowBlock::offset);
  py::class_<PyWindow>(module, "Window", py::is_final())
      .def(
          "name_tag",
          [](PyWindow& self, uint32_t tag, std::string name) { self.window()->NameTag(tag, std::move(name)); },
          py::arg("tag"), py::arg("name"))
      .def("enter", &PyWindow::Enter, py::arg("rows"), py::arg("tag"), py::arg("row_bytes"), py::arg("epsilon"),
           py::arg("tau"), py::arg("limit"), py::arg("wait_for_room"))
      .def("next", &PyWindow::Next)
      .def("fail", &PyWindow::Fail, py::arg("why"))
      .def("close", &PyWindow::Close)
      .def_property_readonly("closed", [](const PyWindow& self) { return self.window()->closed(); })
      .def_property_readonly("round", [](const PyWindow& self) { return self.window()->exchange().round(); })
      .def("outcomes", &PyWindow::Outcomes)
      .def("waited", &PyWindow::Waited)
      .def("served", &PyWindow::Served)
      .def("calls_elsewhere", &PyWindow::CallsElsewhere)
      .def(
          "has_closed", [](const PyWindow& self, int rank) { return self.window()->HasClosed(rank); }, py::arg("rank"));
  module.def("allocate_window", &AllocateWindow, py::arg("runtime"), py::arg("process_set"), py::arg("hosts"),
             py::arg("depth"), py::arg("batch_bytes"), py::arg("result_bytes"));
  module.def("connect_window", &ConnectWindow, py::arg("runtime"), py::arg("block"), py::arg("offsets"));
}

}  // namespace horocache::python
