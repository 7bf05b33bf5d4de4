// Python bindings of knobs, identity and kernels.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/environment.h"
#include "base/knobs.h"
#include "base/memory.h"
#include "data/kernels/fold.h"
#include "net/bootstrap/launcher_environment.h"
#include "python/bind.h"
#include "python/errors.h"
#include "runtime/runtime.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

using Texts = std::map<std::string, std::string>;

const char* TypeName(KnobType type) {
  static constexpr std::array<const char*, 5> kNames = {"int", "float", "bool", "str", "choice"};
  return kNames.at(static_cast<size_t>(type));
}

py::list KnobTableForPython() {
  static constexpr std::array<const char*, 2> kScopes = {"agree", "rank"};
  py::list rows;
  for (const KnobInfo& info : KnobTable()) {
    py::dict row;
    row["name"] = info.name;
    row["type"] = TypeName(info.type);
    row["default"] = info.default_value;
    row["minimum"] = info.minimum;
    row["maximum"] = info.maximum;
    row["alias"] = info.horovod_alias;
    row["scope"] = kScopes.at(static_cast<size_t>(info.scope));
    row["doc"] = info.doc;
    rows.append(row);
  }
  return rows;
}

Knobs Parse(const Texts& arguments) {
  StatusOr<Knobs> knobs = Knobs::Parse(ReadEnvironment(), arguments);
  ThrowIfError(knobs.status());
  ThrowIfError(runtime::CheckKnobs(*knobs));
  return std::move(*knobs);
}

py::dict IdentityForPython() {
  const StatusOr<net::Identity> found = net::DetectIdentity(Parse({}), ReadEnvironment());
  ThrowIfError(found.status());
  py::dict out;
  out["rank"] = found->rank;
  out["size"] = found->size;
  out["local_rank"] = found->local_rank;
  out["local_size"] = found->local_size;
  out["cross_rank"] = found->cross_rank;
  out["cross_size"] = found->cross_size;
  out["job"] = found->job;
  out["source"] = found->source;
  return out;
}

}  // namespace

py::dict KnobsForPython(const Knobs& knobs) {
  py::dict out;
  for (size_t i = 0; i < knobs.entries.size(); ++i) {
    out[py::str(std::string(KnobTable()[i].name))] =
        py::make_tuple(knobs.entries[i].text, KnobSourceName(knobs.entries[i].source));
  }
  return out;
}

void BindKnobs(py::module_& module) {
  module.def("knob_table", &KnobTableForPython);
  module.def(
      "parse_knobs", [](const Texts& arguments) { return KnobsForPython(Parse(arguments)); },
      py::arg("arguments") = Texts());
  module.def("identity", &IdentityForPython);
  module.def("launcher_variables", &net::LauncherVariables, py::arg("environment"));
  module.def("cpu_kernels", &data::BestKernels);
  module.def("keep_freed_memory", &KeepFreedMemory);
}

}  // namespace horocache::python
