// Python bindings to run programs outside of a job, for `horocache lang run` and `tune`.
#include <pybind11/stl.h>

#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "program/local_run.h"
#include "python/bind.h"
#include "python/errors.h"

namespace horocache::python {
namespace {

namespace py = pybind11;

using Port = std::tuple<double, double, double>;  // latency in ns, ns per byte, gap in ns

// Returns the memory of the arrays; the caller keeps them alive.
std::vector<std::span<std::byte>> MemoryOf(const std::vector<py::buffer>& arrays) {
  std::vector<std::span<std::byte>> memory;
  for (const py::buffer& array : arrays) {
    const py::buffer_info info = array.request(true);
    memory.emplace_back(static_cast<std::byte*>(info.ptr), static_cast<size_t>(info.size * info.itemsize));
  }
  return memory;
}

std::vector<int64_t> RunProgram(std::string_view packed, const std::vector<py::buffer>& inputs,
                                const std::vector<py::buffer>& outputs, const std::string& dtype, int64_t elements,
                                int reduce_op, int protocol, int slots, int64_t message_bytes, int repetitions,
                                uint64_t seed, double patience_s, const std::vector<Port>& ports,
                                std::vector<int> port_of) {
  const auto type = DTypeFromName(dtype);
  if (!type) ThrowIfError(InvalidArgumentError("there is no element type '" + dtype + "'"));
  program::LocalRun run;
  run.packed = std::as_bytes(std::span(packed));
  run.dtype = *type;
  run.reduce_op = static_cast<wire::ReduceOp>(reduce_op);
  run.elements = elements;
  run.protocol = static_cast<program::Protocol>(protocol);
  run.slots = slots;
  run.message_bytes = message_bytes;
  run.repetitions = repetitions;
  run.seed = seed;
  run.patience_ns = static_cast<int64_t>(patience_s * 1e9);
  for (const auto& [latency_ns, ns_per_byte, gap_ns] : ports) {
    run.delays.ports.push_back({latency_ns, ns_per_byte, gap_ns});
  }
  run.delays.port_of = std::move(port_of);
  run.inputs = MemoryOf(inputs);
  run.outputs = MemoryOf(outputs);
  const py::gil_scoped_release released;
  StatusOr<std::vector<int64_t>> times = program::RunLocally(run);
  if (!times.ok()) {
    const py::gil_scoped_acquire held;
    ThrowIfError(times.status());
  }
  return std::move(*times);
}

}  // namespace

void BindPrograms(py::module_& module) {
  module.def("run_program", &RunProgram, py::arg("packed"), py::arg("inputs"), py::arg("outputs"), py::arg("dtype"),
             py::arg("elements"), py::arg("reduce_op") = 1, py::arg("protocol") = 0, py::arg("slots") = 0,
             py::arg("message_bytes") = 0, py::arg("repetitions") = 1, py::arg("seed") = 0,
             py::arg("patience_s") = 10.0, py::arg("ports") = std::vector<Port>(),
             py::arg("port_of") = std::vector<int>());
}

}  // namespace horocache::python
