// Seeded random programs over 2 to 5 ranks, stepped in a random order. The tests check the properties that hold for
// every program and every order.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "control/test_network.h"

namespace horocache::control {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int Below(int n) { return static_cast<int>(engine_() % static_cast<uint64_t>(n)); }
  bool Chance(int percent) { return Below(100) < percent; }
  template <typename T>
  void Shuffle(std::vector<T>* values) {
    for (size_t i = values->size(); i > 1; --i) {
      std::swap((*values)[i - 1], (*values)[static_cast<size_t>(Below(static_cast<int>(i)))]);
    }
  }

 private:
  std::mt19937_64 engine_;
};

// The steps of one thread of one rank. In each step it submits these operations in this order, then waits for all.
using Program = std::vector<std::vector<wire::Signature>>;

struct Options {
  bool join = false;
  bool groups = true;
  bool settings = false;  // rank 0 changes settings at random moments
};

wire::Signature SomeOp(Random& random, int index, int size) {
  const std::string name = "t" + std::to_string(index);
  switch (random.Below(8)) {
    case 0:
      return OfOp(wire::Op::kBroadcast, name, random.Below(size));
    case 1: {
      wire::Signature gather = OfOp(wire::Op::kAllgather, name);
      gather.tensors[0].shape = {-1, 3};
      return gather;
    }
    case 2:
      return OfOp(wire::Op::kReducescatter, name);
    case 3:
      return OfOp(wire::Op::kBarrier, name);
    default:
      return Tensor(name, {1 + random.Below(6), 4}, random.Chance(30) ? DType::kFloat16 : DType::kFloat32);
  }
}

// The steps of a program that all ranks share: mostly repeated operations, sometimes with another signature.
Program MakeProgram(Random& random, int size, const Options& options) {
  const int names = 1 + random.Below(10);
  std::vector<wire::Signature> pool;
  for (int i = 0; i < names; ++i) {
    pool.push_back(options.join ? Tensor("t" + std::to_string(i)) : SomeOp(random, i, size));
  }
  if (options.groups) {
    for (int g = 0; g < 2; ++g) {
      std::vector<std::string> members;
      for (int m = 0; m < 2 + random.Below(4); ++m)
        members.push_back("g" + std::to_string(g) + "." + std::to_string(m));
      pool.push_back(Group("group" + std::to_string(g), members, 1 + random.Below(40)));
    }
  }
  Program program;
  for (int step = 0; step < 3 + random.Below(6); ++step) {
    std::vector<wire::Signature> ops;
    for (wire::Signature& signature : pool) {
      if (random.Chance(15) && !signature.tensors.empty()) signature.tensors[0].dtype = DType::kFloat64;
      if (random.Chance(10) && !signature.tensors.empty()) signature.tensors[0].dtype = DType::kFloat32;
      if (random.Chance(80)) ops.push_back(signature);
    }
    program.push_back(std::move(ops));
  }
  return program;
}

struct RankState {
  Program program;
  size_t step = 0, next = 0;
  std::vector<OpId> outstanding;
  bool joining = false;
  OpId join = kNoOp;
  std::set<std::string> submitted;  // name and count, to check that nothing runs too early
};

class Execution {
 public:
  Execution(uint64_t seed, int size, const ControllerConfig& config, const Options& options)
      : random(seed), job(size, config), options_(options) {
    job.single_steps = true;
    const Program shared = MakeProgram(random, size, options);
    for (int rank = 0; rank < size; ++rank) {
      RankState state;
      state.program = shared;
      for (auto& ops : state.program) random.Shuffle(&ops);
      if (options.join) state.program.resize(shared.size() - static_cast<size_t>(random.Below(3)));
      ranks.push_back(std::move(state));
    }
  }

  void Run() {
    int idle = 0;
    while (options_.settings && configured_ < 2) Configure();
    while (!Finished()) {
      ASSERT_LT(++turns_, 2'000'000) << "the program does not end";
      const int rank = random.Below(job.size());
      const bool acted = Act(rank);
      if (options_.settings && random.Chance(3) && !ranks[0].joining) Configure();
      bool stepped = false;
      if (random.Chance(60)) {
        const int other = random.Below(job.size());
        if (random.Chance(5)) job.Touch(other);
        stepped = job.StepRank(other);
      }
      if (random.Chance(20)) job.now += random.Below(400'000);
      idle = acted || stepped ? 0 : idle + 1;
      if (idle > 50) {  // no rank runs: time passes until the next wake-up
        idle = 0;
        ASSERT_NE(job.NextWake(), kNever) << "no rank runs any more";
        ASSERT_LT(job.now, 100 * kS) << "no progress";
        job.now = std::max(job.now, job.NextWake());
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
    job.single_steps = false;
    job.RunFor(1 * kS);
  }

  void Check() {
    for (int rank = 0; rank < job.size(); ++rank) {
      for (const auto& [op, outcome] : job.outcomes[static_cast<size_t>(rank)]) {
        EXPECT_EQ(outcome.plans, 1) << "rank " << rank << " op " << op << ": " << outcome.status.ToString();
        EXPECT_EQ(outcome.failures, 0);
      }
      EXPECT_FALSE(job[rank].HasPending());
      const auto texts = PlanTexts(rank);
      EXPECT_EQ(texts, PlanTexts(0)) << "rank " << rank;
      EXPECT_EQ(ChangeTexts(rank), ChangeTexts(0)) << "rank " << rank;
    }
    EXPECT_EQ(job.settings[0].size(), configured_);
    CheckGroupsAreBackToBack();
    job.ExpectEqualCaches();
  }

  Random random;
  TestJob job;
  std::vector<RankState> ranks;

 private:
  bool Finished() const {
    for (const RankState& rank : ranks) {
      if (rank.step < rank.program.size() || !rank.outstanding.empty() || (options_.join && !rank.joining))
        return false;
      if (rank.joining && !Ended(rank, rank.join)) return false;
    }
    return true;
  }
  bool Ended(const RankState& state, OpId op) const {
    const auto r = static_cast<size_t>(&state - ranks.data());
    return job.outcomes[r].at(op).done();
  }

  void Configure() {
    constexpr const char* kLines[] = {
        "cache=0",     "cache=1", "fusion_threshold=0",          "fusion_threshold=100", "cycle_time=0.1",
        "table=*=any", "table=",  "table=allreduce,float16=gone"};
    const std::string first = kLines[random.Below(8)], second = kLines[random.Below(8)];
    const bool apart = first.substr(0, first.find('=')) != second.substr(0, second.find('='));
    const Status status = job[0].Configure(apart ? first + "\n" + second : first);
    ASSERT_TRUE(status.ok()) << status.message();
    ++configured_;
    job.Touch(0);
  }

  // Takes one action of the rank's thread; false if the thread is blocked or has finished.
  bool Act(int rank) {
    RankState& state = ranks[static_cast<size_t>(rank)];
    if (state.joining) return false;
    if (state.step == state.program.size()) {
      if (!options_.join) return false;
      state.joining = true;
      state.join = job.Submit(rank, OfOp(wire::Op::kJoin, "join"));
      job.Wait(rank);
      return true;
    }
    const auto& ops = state.program[state.step];
    if (state.next < ops.size()) {
      state.outstanding.push_back(job.Submit(rank, ops[state.next++]));
      return true;
    }
    std::erase_if(state.outstanding, [&](OpId op) { return Ended(state, op); });
    if (!state.outstanding.empty()) {
      if (!job.waiting[static_cast<size_t>(rank)].first) job.Wait(rank);
      return false;
    }
    job.StopWaiting(rank);
    state.next = 0;
    ++state.step;
    return true;
  }

  std::vector<std::string> PlanTexts(int rank) const {
    std::vector<std::string> texts;
    for (const Plan& plan : job.plans[static_cast<size_t>(rank)]) {
      std::string text = std::to_string(plan.sequence) + " " + std::string(OpName(plan.op));
      for (const PlanItem& item : plan.items) {
        text +=
            " " + item.signature->name + "[" + std::to_string(item.first_tensor) + "+" +
            std::to_string(item.num_tensors) + "]" +
            std::string(DTypeName(item.signature->tensors.empty() ? DType::kBool : item.signature->tensors[0].dtype));
      }
      for (const int32_t joined : plan.joined) text += " j" + std::to_string(joined);
      texts.push_back(text + " " + std::to_string(plan.last_joined));
    }
    return texts;
  }

  // Where each change of settings stands among the rank's rounds and plans.
  std::vector<std::string> ChangeTexts(int rank) const {
    std::vector<std::string> texts;
    for (const Change& change : job.settings[static_cast<size_t>(rank)]) {
      texts.push_back(std::to_string(change.round) + " " + std::to_string(change.plans) + " " +
                      std::to_string(change.settings.fusion_threshold_bytes.value_or(-1)) + " " +
                      change.settings.table.value_or("-") + " " +
                      std::to_string(static_cast<int>(change.settings.cache.value_or(false))));
    }
    return texts;
  }

  void CheckGroupsAreBackToBack() const {
    std::string open;
    for (const Plan& plan : job.plans[0]) {
      for (size_t i = 0; i < plan.items.size(); ++i) {
        const PlanItem& item = plan.items[i];
        if (!open.empty()) {
          EXPECT_EQ(item.signature->name, open) << "something ran between the pieces of a group";
        }
        open = item.last_piece ? "" : item.signature->name;
      }
    }
    EXPECT_EQ(open, "");
  }

  const Options options_;
  int turns_ = 0;
  size_t configured_ = 0;
};

ControllerConfig SomeConfig(Random& random) {
  ControllerConfig config;
  constexpr int64_t kCapacities[] = {0, 1, 2, 3, 5, 1024};
  config.cache_capacity = kCapacities[random.Below(6)];
  config.cache_capacity_fixed = random.Chance(50);
  constexpr int64_t kThresholds[] = {0, 32, 100, 128 << 20};
  config.fusion_threshold_bytes = kThresholds[random.Below(4)];
  config.disable_group_fusion = random.Chance(30);
  config.tick = random.Chance(25);
  config.stall_warn_ns = 200 * kS;  // the job must make progress without the stall inspector
  return config;
}

TEST(RandomProgram, EveryOperationRunsOnceInTheSameOrderOnEveryRank) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed * 7919 + 1);
    Execution execution(seed, 2 + random.Below(4), SomeConfig(random), {});
    execution.Run();
    execution.Check();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RandomProgram, SettingsChangeOnAllRanksAtTheSamePoint) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed * 6271 + 3);
    Options options;
    options.settings = true;
    options.join = random.Chance(30);
    Execution execution(seed, 1 + random.Below(5), SomeConfig(random), options);
    execution.Run();
    execution.Check();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RandomProgram, RanksThatEndEarlyJoinAndTheOthersContinue) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed * 104729 + 2);
    Options options;
    options.join = true;
    Execution execution(seed, 2 + random.Below(4), SomeConfig(random), options);
    execution.Run();
    execution.Check();
    if (::testing::Test::HasFailure()) return;
    for (int rank = 0; rank < execution.job.size(); ++rank) {
      EXPECT_GE(execution.job.plans[static_cast<size_t>(rank)].back().last_joined, 0);
    }
  }
}

}  // namespace
}  // namespace horocache::control
