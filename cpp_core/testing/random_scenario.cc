#include "testing/random_scenario.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "testing/seeded_random.h"

namespace horocache::testing {

namespace {

class Generator {
 public:
  explicit Generator(const RandomOptions& options) : options_(options), random_(options.seed * 0x9E3779B9u + 17) {}

  Scenario Make() {
    scenario_.seed = options_.seed;
    scenario_.ranks = options_.ranks;
    scenario_.programs.resize(static_cast<size_t>(options_.ranks));
    MakeSets();
    names_.resize(scenario_.sets.size());
    leaves_at_.assign(static_cast<size_t>(options_.ranks), options_.steps);
    for (int& step : leaves_at_) {
      if (Chance(options_.leave_early)) step = Below(options_.steps);
    }
    for (int step = 0; step < options_.steps; ++step) MakeStep(step);
    if (Chance(options_.join)) MakeJoin();
    MakeFaults();
    return std::move(scenario_);
  }

 private:
  int Below(int bound) { return static_cast<int>(random_.Below(static_cast<uint64_t>(std::max(bound, 1)))); }
  bool Chance(int per_mille) { return Below(1000) < per_mille; }

  template <typename T>
  void Shuffle(std::vector<T>* items) {
    for (size_t i = items->size(); i > 1; --i) std::swap((*items)[i - 1], (*items)[random_.Below(i)]);
  }

  void MakeSets() {
    std::vector<int> all(static_cast<size_t>(options_.ranks));
    std::iota(all.begin(), all.end(), 0);
    scenario_.sets.assign(1, all);
    while (static_cast<int>(scenario_.sets.size()) < options_.sets) {
      std::vector<int> members = all;
      Shuffle(&members);
      members.resize(static_cast<size_t>(1 + Below(options_.ranks)));
      std::sort(members.begin(), members.end());
      scenario_.sets.push_back(members);
    }
  }

  wire::Signature RandomSignature(int set, const std::string& name) {
    static constexpr wire::Op kOps[] = {wire::Op::kAllreduce, wire::Op::kAllreduce,     wire::Op::kAllreduce,
                                        wire::Op::kAllgather, wire::Op::kBroadcast,     wire::Op::kReducescatter,
                                        wire::Op::kAlltoall,  wire::Op::kReducescatter, wire::Op::kBarrier};
    // Draws no random number if `small` is 0, so that other options give the scenarios that they gave without it.
    const bool small = options_.small > 0 && Chance(options_.small);
    const bool group = Chance(options_.group);
    const wire::Op op = group || small ? wire::Op::kAllreduce : kOps[Below(static_cast<int>(std::size(kOps)))];
    std::vector<std::vector<int64_t>> shapes;
    const int count = op == wire::Op::kBarrier ? 0 : group ? 2 + Below(4) : 1;
    for (int i = 0; i < count; ++i) shapes.push_back(small ? std::vector<int64_t>{1 + Below(9)} : RandomShape(op));
    wire::Signature signature = MakeSignature(op, name, shapes, Below(2) == 0 ? DType::kFloat32 : DType::kInt64);
    if (op == wire::Op::kAllreduce && Below(3) == 0) signature.reduce_op = wire::ReduceOp::kMax;
    if (Chance(options_.priority)) signature.priority = Below(7) - 3;
    if (op == wire::Op::kBroadcast) {
      signature.root = Below(static_cast<int>(scenario_.sets[static_cast<size_t>(set)].size()));
    }
    return signature;
  }

  std::vector<int64_t> RandomShape(wire::Op op) {
    const bool differs = op == wire::Op::kAllgather || op == wire::Op::kAlltoall;
    std::vector<int64_t> shape{differs ? -1 : 1 + Below(64), 1 + Below(64)};
    return shape;
  }

  // The requests of one step of one set, equal on all members.
  std::vector<wire::Signature> MakeRequests(int set) {
    std::vector<wire::Signature>& names = names_[static_cast<size_t>(set)];
    for (int i = 0; i < options_.tensors; ++i) {
      const bool is_new = static_cast<int>(names.size()) <= i;
      if (!is_new && !Chance(options_.new_name)) {
        if (Chance(options_.change)) {
          const std::string name = names[static_cast<size_t>(i)].name;
          names[static_cast<size_t>(i)] = RandomSignature(set, name);
        }
        continue;
      }
      const wire::Signature fresh = RandomSignature(set, "tensor." + std::to_string(next_name_++));
      if (is_new) {
        names.push_back(fresh);
      } else {
        names[static_cast<size_t>(i)] = fresh;
      }
    }
    return names;
  }

  std::string RandomSettings() {
    static constexpr const char* kThresholds[] = {"0", "100", "1000", "20000", "134217728"};
    static constexpr const char* kCycles[] = {"0", "0.01", "1", "3"};
    static constexpr const char* kTables[] = {"", "allreduce=other", "*:1k-=other;allreduce:0-64=simulated",
                                              "*=other;allreduce=gone", "allreduce,int64=other"};
    static constexpr const char* kCaches[] = {"0", "1"};
    std::string text = "note=" + std::to_string(next_note_++);
    const auto add = [&](const std::string& name, std::span<const char* const> values) {
      if (Below(3) == 0) text += "\n" + name + "=" + values[random_.Below(values.size())];
    };
    add("fusion_threshold", kThresholds);
    add("cycle_time", kCycles);
    add("cache", kCaches);
    add("table", kTables);
    return text;
  }

  void MakeStep(int step) {
    std::vector<std::vector<wire::Signature>> requests;
    for (int set = 0; set < static_cast<int>(scenario_.sets.size()); ++set) requests.push_back(MakeRequests(set));
    for (int rank = 0; rank < options_.ranks; ++rank) {
      auto& program = scenario_.programs[static_cast<size_t>(rank)];
      if (step == leaves_at_[static_cast<size_t>(rank)]) LeaveAll(rank);
      if (step >= leaves_at_[static_cast<size_t>(rank)]) continue;
      std::vector<std::pair<int, wire::Signature>> mine;
      for (int set = 0; set < static_cast<int>(scenario_.sets.size()); ++set) {
        if (!IsMember(set, rank)) continue;
        for (const auto& signature : requests[static_cast<size_t>(set)]) mine.emplace_back(set, signature);
      }
      Shuffle(&mine);
      for (auto& [set, signature] : mine) Submit(rank, set, std::move(signature));
      program.push_back(Instruction{.act = Act::kWaitAll});
    }
  }

  void Submit(int rank, int set, wire::Signature signature) {
    auto& program = scenario_.programs[static_cast<size_t>(rank)];
    if (Chance(options_.forget)) return;
    if (Chance(options_.compute)) {
      program.push_back(Instruction{.act = Act::kCompute, .duration_ns = Below(3'000'000)});
    }
    if (Chance(options_.disagree) && !signature.tensors.empty()) {
      if (Below(2) == 0) {
        signature.tensors[0].shape.push_back(2);
      } else {
        ++signature.priority;
      }
    }
    if (options_.configure > 0 && scenario_.sets[static_cast<size_t>(set)].front() == rank &&
        Chance(options_.configure)) {
      program.push_back(Instruction{.act = Act::kConfigure, .set = set, .settings = RandomSettings()});
    }
    const int copies = Chance(options_.duplicate) ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      program.push_back(Instruction{.act = Act::kSubmit, .set = set, .signature = signature});
    }
    if (!Chance(options_.early_wait)) return;
    const auto submitted =
        std::count_if(program.begin(), program.end(), [](const Instruction& i) { return i.act == Act::kSubmit; });
    program.push_back(Instruction{.act = Act::kWait, .index = Below(static_cast<int>(submitted))});
  }

  // Ranks run out of data after different numbers of extra steps and join; then all continue together.
  void MakeJoin() {
    const std::vector<wire::Signature> requests = names_[0];
    wire::Signature join = MakeSignature(wire::Op::kJoin, "join", {});
    if (Below(2) == 0) join.divide_by = wire::DivideBy::kActive;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      auto& program = scenario_.programs[static_cast<size_t>(rank)];
      if (leaves_at_[static_cast<size_t>(rank)] < options_.steps) continue;
      const int extra = Below(3);
      for (int step = 0; step < extra; ++step) {
        for (const auto& signature : requests) {
          if (wire::HasRoot(signature.op)) continue;  // the root may have joined
          program.push_back(Instruction{.act = Act::kSubmit, .signature = signature});
        }
        program.push_back(Instruction{.act = Act::kWaitAll});
      }
      program.push_back(Instruction{.act = Act::kSubmit, .signature = join});
      program.push_back(Instruction{.act = Act::kWaitAll});
    }
  }

  void MakeFaults() {
    const int submissions = options_.ranks * options_.steps * options_.tensors * options_.sets;
    const auto step = [&] { return static_cast<uint64_t>(Below(4 * submissions + 1)); };
    if (Chance(options_.pause)) {
      scenario_.faults.push_back({Fault::Kind::kPause, Below(options_.ranks), step(), Below(20'000'000)});
    }
    if (Chance(options_.kill)) {
      scenario_.faults.push_back({Fault::Kind::kKill, Below(options_.ranks), step(), Below(1'000'000)});
    }
    if (Chance(options_.abort)) {
      auto& program = scenario_.programs[static_cast<size_t>(Below(options_.ranks))];
      const int place = Below(static_cast<int>(program.size()) + 1);
      program.insert(program.begin() + place, Instruction{.act = Act::kAbort});
    }
  }

  bool IsMember(int set, int rank) const {
    const auto& members = scenario_.sets[static_cast<size_t>(set)];
    return std::binary_search(members.begin(), members.end(), rank);
  }

  void LeaveAll(int rank) {
    for (int set = 0; set < static_cast<int>(scenario_.sets.size()); ++set) {
      if (!IsMember(set, rank)) continue;
      scenario_.programs[static_cast<size_t>(rank)].push_back(Instruction{.act = Act::kLeave, .set = set});
    }
  }

  const RandomOptions options_;
  SeededRandom random_;
  Scenario scenario_;
  std::vector<std::vector<wire::Signature>> names_;  // by set: the requests of the last step
  std::vector<int> leaves_at_;                       // by rank: the step before which it leaves
  int next_name_ = 0, next_note_ = 0;
};

}  // namespace

Scenario RandomScenario(const RandomOptions& options) { return Generator(options).Make(); }

wire::Signature MakeSignature(wire::Op op, const std::string& name, const std::vector<std::vector<int64_t>>& shapes,
                              DType dtype) {
  wire::Signature signature;
  signature.op = op;
  signature.name = name;
  for (size_t i = 0; i < shapes.size(); ++i) {
    signature.tensors.push_back(
        wire::TensorMeta{shapes.size() == 1 ? name : name + "." + std::to_string(i), dtype, shapes[i]});
  }
  return signature;
}

}  // namespace horocache::testing
