// horocache._testing: the Python module of the control plane's simulation, for tests and benchmarks; not a part of the
// package. Scenarios and results are dictionaries.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "testing/control_benchmark.h"
#include "testing/random_scenario.h"
#include "testing/simulation.h"

namespace py = pybind11;

namespace horocache::testing {

namespace {

wire::Op OpFromName(const std::string& name) {
  for (int op = 0; op < wire::kNumOps; ++op) {
    if (wire::OpName(static_cast<wire::Op>(op)) == name) return static_cast<wire::Op>(op);
  }
  throw py::value_error("unknown operation \"" + name + "\"");
}

// ("submit", set, op, name, shapes, root, priority), ("wait", index), ("wait_all",), ("compute", ns), ("leave", set),
// ("configure", set, settings), ("abort",)
Instruction InstructionFrom(const py::tuple& fields) {
  const auto kind = fields[0].cast<std::string>();
  if (kind == "submit") {
    Instruction instruction{.act = Act::kSubmit, .set = fields[1].cast<int>()};
    instruction.signature = MakeSignature(OpFromName(fields[2].cast<std::string>()), fields[3].cast<std::string>(),
                                          fields[4].cast<std::vector<std::vector<int64_t>>>());
    instruction.signature.root = fields[5].cast<int>();
    instruction.signature.priority = fields[6].cast<int32_t>();
    return instruction;
  }
  if (kind == "wait") return {.act = Act::kWait, .index = fields[1].cast<int>()};
  if (kind == "wait_all") return {.act = Act::kWaitAll};
  if (kind == "compute") return {.act = Act::kCompute, .duration_ns = fields[1].cast<int64_t>()};
  if (kind == "leave") return {.act = Act::kLeave, .set = fields[1].cast<int>()};
  if (kind == "configure")
    return {.act = Act::kConfigure, .set = fields[1].cast<int>(), .settings = fields[2].cast<std::string>()};
  if (kind == "abort") return {.act = Act::kAbort};
  throw py::value_error("unknown instruction \"" + kind + "\"");
}

// ("kill" or "pause", rank, step, ns)
Fault FaultFrom(const py::tuple& fields) {
  const auto kind = fields[0].cast<std::string>();
  if (kind != "kill" && kind != "pause") throw py::value_error("unknown fault \"" + kind + "\"");
  return {kind == "kill" ? Fault::Kind::kKill : Fault::Kind::kPause, fields[1].cast<int>(), fields[2].cast<uint64_t>(),
          fields[3].cast<int64_t>()};
}

using Setters = std::map<std::string, std::function<void(Scenario*, const py::handle&)>>;

template <typename T>
void Set(const py::handle& value, T* field) {
  *field = value.cast<T>();
}

const Setters& ScenarioFields() {
  static const Setters fields = {
      {"seed", [](Scenario* s, const py::handle& v) { Set(v, &s->seed); }},
      {"ranks", [](Scenario* s, const py::handle& v) { Set(v, &s->ranks); }},
      {"sets", [](Scenario* s, const py::handle& v) { Set(v, &s->sets); }},
      {"strategy", [](Scenario* s, const py::handle& v) { Set(v, &s->strategy); }},
      {"radix", [](Scenario* s, const py::handle& v) { Set(v, &s->radix); }},
      {"ranks_per_host", [](Scenario* s, const py::handle& v) { Set(v, &s->ranks_per_host); }},
      {"max_delay_ns", [](Scenario* s, const py::handle& v) { Set(v, &s->max_delay_ns); }},
      {"delay_words", [](Scenario* s, const py::handle& v) { Set(v, &s->delay_words); }},
      {"max_duration_ns", [](Scenario* s, const py::handle& v) { Set(v, &s->max_duration_ns); }},
      {"leave_at_end", [](Scenario* s, const py::handle& v) { Set(v, &s->leave_at_end); }},
      {"max_steps", [](Scenario* s, const py::handle& v) { Set(v, &s->max_steps); }},
      {"one_lane_per_rank", [](Scenario* s, const py::handle& v) { Set(v, &s->sabotage.one_lane_per_rank); }},
      {"cache_capacity", [](Scenario* s, const py::handle& v) { Set(v, &s->controller.cache_capacity); }},
      {"cache_capacity_fixed", [](Scenario* s, const py::handle& v) { Set(v, &s->controller.cache_capacity_fixed); }},
      {"fusion_threshold_bytes",
       [](Scenario* s, const py::handle& v) { Set(v, &s->controller.fusion_threshold_bytes); }},
      {"disable_group_fusion", [](Scenario* s, const py::handle& v) { Set(v, &s->controller.disable_group_fusion); }},
      {"tick", [](Scenario* s, const py::handle& v) { Set(v, &s->controller.tick); }},
      {"cycle_time_ns", [](Scenario* s, const py::handle& v) { Set(v, &s->controller.cycle_time_ns); }},
      {"stall_warn_ns", [](Scenario* s, const py::handle& v) { Set(v, &s->controller.stall_warn_ns); }},
      {"stall_fail_ns", [](Scenario* s, const py::handle& v) { Set(v, &s->controller.stall_fail_ns); }},
      {"programs",
       [](Scenario* s, const py::handle& v) {
         for (const py::handle program : v) {
           auto& instructions = s->programs.emplace_back();
           for (const py::handle fields : program) instructions.push_back(InstructionFrom(fields.cast<py::tuple>()));
         }
       }},
      {"faults",
       [](Scenario* s, const py::handle& v) {
         for (const py::handle fields : v) s->faults.push_back(FaultFrom(fields.cast<py::tuple>()));
       }},
  };
  return fields;
}

Scenario ScenarioFrom(const py::dict& fields) {
  Scenario scenario;
  for (const auto& [key, value] : fields) {
    const auto name = key.cast<std::string>();
    const auto setter = ScenarioFields().find(name);
    if (setter == ScenarioFields().end()) throw py::value_error("a scenario has no field \"" + name + "\"");
    setter->second(&scenario, value);
  }
  return scenario;
}

py::dict Simulate(const py::dict& fields) {
  const Scenario scenario = ScenarioFrom(fields);
  History history;
  Status status;
  {
    py::gil_scoped_release release;
    status = RunAndCheck(scenario, &history);
  }
  if (status.code() == StatusCode::kInvalidArgument) throw py::value_error(status.message());
  std::map<std::string, int> ends;
  uint64_t rounds = 0, evictions = 0, hits = 0, changes = 0;
  for (const auto& set : history.sets) {
    for (const auto& member : set.members) {
      for (const auto& end : member.ended) ++ends[std::string(StatusCodeName(end.status.code()))];
      rounds += member.counters.rounds;
      evictions += member.counters.evictions;
      hits += member.counters.hits;
      changes += member.settings.size();
    }
  }
  using namespace py::literals;
  return py::dict("violation"_a = status.message(), "ends"_a = ends, "rounds"_a = rounds, "evictions"_a = evictions,
                  "hits"_a = hits, "changes"_a = changes, "steps"_a = history.steps,
                  "virtual_ns"_a = history.virtual_ns, "messages"_a = history.messages, "bytes"_a = history.bytes);
}

py::dict BenchControl(const std::string& strategy, int ranks, int tensors, bool cache, int steps, int radix,
                      int ranks_per_host) {
  const ControlBenchmark benchmark{.strategy = strategy,
                                   .ranks = ranks,
                                   .tensors = tensors,
                                   .cache = cache,
                                   .steps = steps,
                                   .radix = radix,
                                   .ranks_per_host = ranks_per_host};
  StatusOr<ControlCost> cost = Status(StatusCode::kInternal, "not run");
  {
    py::gil_scoped_release release;
    cost = Measure(benchmark);
  }
  if (!cost.ok()) throw py::value_error(cost.status().message());
  using namespace py::literals;
  return py::dict("coordinator_us"_a = cost->coordinator_us, "worker_us"_a = cost->worker_us,
                  "first_step_us"_a = cost->first_step_us, "messages"_a = cost->messages, "bytes"_a = cost->bytes,
                  "rounds"_a = cost->rounds, "wall_s"_a = cost->wall_s);
}

}  // namespace

}  // namespace horocache::testing

PYBIND11_MODULE(_testing, module) {
  using namespace py::literals;
  namespace testing = horocache::testing;
  module.doc() = "The simulation of the control plane.";
  module.def("simulate", &testing::Simulate, "scenario"_a,
             "Run a simulated job and check every property of the control plane; \"violation\" is empty if all hold.");
  module.def("bench_control", &testing::BenchControl, "strategy"_a, "ranks"_a, "tensors"_a, "cache"_a, "steps"_a = 5,
             "radix"_a = 4, "ranks_per_host"_a = 8,
             "Cost of agreement per step in the steady state, with all ranks in one thread.");
}
