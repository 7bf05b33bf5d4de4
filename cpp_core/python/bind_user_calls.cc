// Python bindings for backends that the program implements: see Note [Backends of the program] in
// data/backends/user/calls.h.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "data/backends/user/calls.h"
#include "python/bind.h"
#include "wire/message.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

using data::UserCall;
using data::UserCalls;

std::vector<std::pair<int64_t, int64_t>> Parts(const std::vector<data::RowPart>& parts) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  pairs.reserve(parts.size());
  for (const data::RowPart& part : parts) pairs.emplace_back(part.first, part.count);
  return pairs;
}

py::ssize_t Bytes(const UserCall& call, int64_t count) {
  return static_cast<py::ssize_t>(count * static_cast<int64_t>(DTypeBytes(call.dtype)));
}

std::shared_ptr<const UserCall> Take(UserCalls& self, double timeout_s) {
  const py::gil_scoped_release released;
  return self.Take(DeadlineNs(timeout_s));
}

void Finish(UserCalls& self, const std::string& error) {
  self.Finish(error.empty() ? Status::Ok() : Status(StatusCode::kAborted, error));
}

}  // namespace

void BindUserCalls(py::module_& module) {
  py::class_<UserCall, std::shared_ptr<UserCall>>(module, "UserCall", py::is_final())
      .def_property_readonly("op", [](const UserCall& self) { return wire::OpName(self.op); })
      .def_property_readonly("reduce_op", [](const UserCall& self) { return wire::ReduceOpName(self.reduce_op); })
      .def_property_readonly("dtype", [](const UserCall& self) { return DTypeName(self.dtype); })
      .def_readonly("root", &UserCall::root)
      .def_property_readonly("input",
                             [](const UserCall& self) {
                               // Frameworks take writable memory only; Backend says that it must not be changed.
                               return py::memoryview::from_memory(const_cast<std::byte*>(self.input),
                                                                  Bytes(self, self.input_count));
                             })
      .def_property_readonly(
          "output",
          [](const UserCall& self) { return py::memoryview::from_memory(self.output, Bytes(self, self.output_count)); })
      .def_property_readonly("sends", [](const UserCall& self) { return Parts(self.sends); })
      .def_property_readonly("receives", [](const UserCall& self) { return Parts(self.receives); });
  py::class_<UserCalls, std::shared_ptr<UserCalls>>(module, "UserCalls", py::is_final())
      .def(
          "take",
          [](UserCalls& self, double timeout_s) { return std::const_pointer_cast<UserCall>(Take(self, timeout_s)); },
          py::arg("timeout_s"))
      .def("finish", &Finish, py::arg("error") = "")
      .def_property_readonly("closed", &UserCalls::closed);
}

}  // namespace horocache::python
