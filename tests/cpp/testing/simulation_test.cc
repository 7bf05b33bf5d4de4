// The control plane under random programs, schedules and faults. The checkers are tested with seeded bugs.

#include "testing/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "base/sanitized.h"
#include "control/bitvector.h"
#include "testing/random_scenario.h"

namespace horocache::testing {
namespace {

using Options = RandomOptions;

Instruction Submit(const std::string& name, int set = 0, int64_t length = 4) {
  return {.act = Act::kSubmit, .set = set, .signature = MakeSignature(wire::Op::kAllreduce, name, {{length}})};
}
const Instruction kWaitForAll{.act = Act::kWaitAll};

const Options kAllFaults = {.sets = 3,
                            .early_wait = 100,
                            .disagree = 10,
                            .forget = 10,
                            .duplicate = 10,
                            .join = 300,
                            .kill = 300,
                            .pause = 300,
                            .abort = 100,
                            .leave_early = 50};

std::string FirstFailure(const History& history) {
  for (const auto& set : history.sets) {
    for (const auto& member : set.members) {
      for (const auto& end : member.ended) {
        if (!end.status.ok()) return "rank " + std::to_string(member.rank) + ": " + end.status.ToString();
      }
    }
  }
  return "";
}

size_t Failures(const History& history) {
  size_t failures = 0;
  for (const auto& set : history.sets) {
    for (const auto& member : set.members) {
      for (const auto& end : member.ended) failures += end.status.ok() ? 0 : 1;
    }
  }
  return failures;
}

size_t Completions(const History& history) {
  size_t completions = 0;
  for (const auto& set : history.sets) {
    for (const auto& member : set.members) completions += member.ended.size();
  }
  return completions - Failures(history);
}

// Parameters: the strategy; true if bitvectors are delayed, as over a link.
class EveryStrategy : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  Scenario Make(const Options& options) const { return Apply(RandomScenario(options)); }
  Scenario Apply(Scenario scenario) const {
    scenario.strategy = std::get<0>(GetParam());
    scenario.delay_words = std::get<1>(GetParam());
    if (scenario.strategy == "leaders") scenario.ranks_per_host = 2 + static_cast<int>(scenario.seed % 2);
    scenario.radix = 2 + static_cast<int>(scenario.seed % 3);
    return scenario;
  }
  // How many of `seeds` seeds a test runs: a tenth with a sanitizer, which makes each run many times slower.
  static constexpr uint64_t Some(uint64_t seeds) { return kSanitized ? (seeds + 9) / 10 : seeds; }
  // Runs the first Some(seeds) seeds; `change` modifies each scenario. `clean`: no operation may fail.
  template <typename F>
  void Run(Options options, uint64_t seeds, F&& change, bool clean = false) const {
    for (uint64_t seed = 0; seed < Some(seeds); ++seed) {
      options.seed = seed;
      options.ranks = 2 + static_cast<int>(seed % 5);
      Scenario scenario = Make(options);
      change(&scenario);
      History history;
      const Status status = RunAndCheck(scenario, &history);
      ASSERT_TRUE(status.ok()) << status.message();
      if (!clean) continue;
      ASSERT_EQ(FirstFailure(history), "") << "seed " << seed;
    }
  }
  void Run(const Options& options, uint64_t seeds, bool clean = false) const {
    Run(options, seeds, [](Scenario*) {}, clean);
  }
};

TEST_P(EveryStrategy, CompletesOperationsThatAllRanksSubmit) { Run({}, 40, /*clean=*/true); }

// Progress must not depend on the stall check, which would find forgotten requests.
TEST_P(EveryStrategy, CompletesWithoutTheStallCheck) {
  Run({.sets = 2}, 40, [](Scenario* scenario) { scenario->controller.stall_check = false; }, /*clean=*/true);
}

TEST_P(EveryStrategy, CompletesInCrossedProcessSets) { Run({.sets = 4}, 30, /*clean=*/true); }

uint64_t Rides(const History& history) {
  uint64_t rides = 0;
  for (const auto& set : history.sets) {
    for (const auto& member : set.members) {
      for (const auto& record : member.planned) rides += record.plan.is_inline() ? 1 : 0;
    }
  }
  return rides;
}

// Small operations are inline where all ranks read all snapshots. Their results are right for every schedule.
TEST_P(EveryStrategy, CompletesManySmallOperations) {
  const bool shared = std::get<0>(GetParam()) == "bits" && !std::get<1>(GetParam());
  for (const bool tick : {false, true}) {
    uint64_t rides = 0;
    for (uint64_t seed = 0; seed < Some(25); ++seed) {
      Scenario scenario = Make({.seed = seed,
                                .ranks = 2 + static_cast<int>(seed % 5),
                                .sets = 1 + static_cast<int>(seed % 3),
                                .tensors = seed % 2 == 0 ? 6 : 20,
                                .small = 700,
                                .early_wait = 100});
      scenario.controller.tick = tick;
      if (seed % 4 == 1) scenario.controller.cache_capacity = 10;
      History history;
      const Status status = RunAndCheck(scenario, &history);
      ASSERT_TRUE(status.ok()) << status.message();
      rides += Rides(history);
    }
    EXPECT_EQ(rides > 20 * Some(25), shared) << rides;
    EXPECT_EQ(rides > 0, shared);
  }
}

TEST_P(EveryStrategy, EndsAllSmallOperationsWithAllFaultsAtOnce) {
  Options options = kAllFaults;
  options.small = 700;
  Run(options, 100);
}

TEST_P(EveryStrategy, CompletesSmallOperationsWhenRanksRunOutOfDataAndJoin) { Run({.small = 700, .join = 1000}, 40); }

TEST_P(EveryStrategy, CompletesWithACacheThatIsMuchTooSmall) {
  for (const int64_t capacity : {0, 1, 2, 5}) {
    for (const bool fixed : {true, false}) {
      Run(
          {.new_name = 200}, 10,
          [&](Scenario* scenario) {
            scenario->controller.cache_capacity = capacity;
            scenario->controller.cache_capacity_fixed = fixed;
            scenario->controller.stall_check = scenario->seed % 2 == 0;
          },
          /*clean=*/true);
    }
  }
}

TEST_P(EveryStrategy, CompletesWithAnyFusion) {
  for (const int64_t threshold : {0, 1000, 20000}) {
    Run(
        {.group = 500}, 10,
        [&](Scenario* scenario) {
          scenario->controller.fusion_threshold_bytes = threshold;
          scenario->controller.disable_group_fusion = threshold == 20000;
        },
        /*clean=*/true);
  }
}

uint64_t Changes(const History& history) {
  uint64_t changes = 0;
  for (const auto& set : history.sets) changes += set.members.back().settings.size();
  return changes;
}

// Settings change while random programs run. Every change comes to every rank, and no operation fails.
TEST_P(EveryStrategy, CompletesWhileSettingsChange) {
  for (const bool tick : {false, true}) {
    uint64_t changes = 0;
    for (uint64_t seed = 0; seed < Some(40); ++seed) {
      Scenario scenario = Make({.seed = seed,
                                .ranks = 1 + static_cast<int>(seed % 6),
                                .sets = 1 + static_cast<int>(seed % 3),
                                .small = seed % 2 == 0 ? 500 : 0,
                                .configure = 250});
      scenario.controller.tick = tick;
      scenario.controller.stall_check = seed % 3 == 0;
      if (seed % 4 == 1) scenario.controller.cache_capacity = 5;
      if (seed % 4 == 3) scenario.controller.cache_capacity = 0;
      History history;
      const Status status = RunAndCheck(scenario, &history);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(FirstFailure(history), "") << "seed " << seed;
      for (const auto& set : history.sets) {
        for (const auto& member : set.members)
          ASSERT_EQ(member.settings.size(), set.members[0].configured) << "seed " << seed;
      }
      changes += Changes(history);
    }
    EXPECT_GT(changes, 5 * Some(40));
  }
}

TEST_P(EveryStrategy, CompletesWhileSettingsChangeAndRanksJoin) {
  Run({.small = 300, .configure = 250, .join = 1000}, 40);
}

TEST_P(EveryStrategy, EndsAllOperationsWithAllFaultsWhileSettingsChange) {
  Options options = kAllFaults;
  options.small = 300;
  options.configure = 250;
  Run(options, 100);
}

// A change of settings needs no operation to travel with.
TEST_P(EveryStrategy, SettingsChangeInAnIdleJob) {
  Scenario scenario;
  scenario.ranks = 5;
  scenario.sets = {{0, 1, 2, 3, 4}};
  const Instruction wait{.act = Act::kCompute, .duration_ns = 30'000'000};
  scenario.programs.assign(5, {wait});
  scenario.programs[0] = {Instruction{.act = Act::kConfigure, .settings = "cache=0"},
                          Instruction{.act = Act::kConfigure, .settings = "note=a"}, wait,
                          Instruction{.act = Act::kConfigure, .settings = "cache=1\ntable=*=other"}};
  scenario.leave_at_end = false;
  History history;
  const Status status = RunAndCheck(Apply(scenario), &history);
  ASSERT_TRUE(status.ok()) << status.message();
  for (const auto& member : history.sets[0].members) {
    EXPECT_EQ(member.settings.size(), 3u);
    EXPECT_LE(member.counters.rounds, 12u);
  }
}

TEST_P(EveryStrategy, CompletesInTickMode) {
  Run({.sets = 2}, 15, [](Scenario* scenario) { scenario->controller.tick = true; }, /*clean=*/true);
}

TEST_P(EveryStrategy, EndsAllOperationsWhenRanksWaitForEachOther) { Run({.early_wait = 600}, 40); }

TEST_P(EveryStrategy, EndsAllOperationsWhenRanksDisagreeForgetAndRepeat) {
  Run({.early_wait = 50, .disagree = 30, .forget = 30, .duplicate = 30}, 40);
}

TEST_P(EveryStrategy, EndsAllOperationsWhenARankIsKilled) { Run({.sets = 2, .kill = 1000, .pause = 500}, 40); }

TEST_P(EveryStrategy, EndsAllOperationsWhenARankLeavesEarly) { Run({.leave_early = 200}, 40); }

TEST_P(EveryStrategy, EndsAllOperationsWhenARankAborts) { Run({.abort = 1000}, 30); }

TEST_P(EveryStrategy, CompletesWhenRanksRunOutOfDataAndJoin) { Run({.join = 1000}, 40); }

TEST_P(EveryStrategy, EndsAllOperationsWithAllFaultsAtOnce) { Run(kAllFaults, 60); }

TEST_P(EveryStrategy, CrossedPairsNeverWaitInACircle) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Scenario scenario;
    scenario.seed = seed;
    scenario.ranks = 3;
    scenario.sets = {{0, 1}, {1, 2}, {0, 2}};
    // Every rank waits for its operations in another order, several times.
    const std::vector<std::vector<int>> orders = {{0, 2}, {1, 0}, {2, 1}};
    for (const auto& order : orders) {
      std::vector<Instruction> program;
      for (int step = 0; step < 5; ++step) {
        for (const int set : order) program.push_back(Submit("x", set));
        program.push_back(kWaitForAll);
      }
      scenario.programs.push_back(program);
    }
    History history;
    const Status status = RunAndCheck(Apply(scenario), &history);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(Failures(history), 0u);
  }
}

TEST_P(EveryStrategy, AnIdleJobMakesNoRounds) {
  Scenario scenario;
  scenario.ranks = 4;
  scenario.sets = {{0, 1, 2, 3}};
  scenario.leave_at_end = false;
  for (int rank = 0; rank < 4; ++rank) {
    scenario.programs.push_back({Submit("x"), kWaitForAll, {.act = Act::kCompute, .duration_ns = 3'600'000'000'000}});
  }
  History history;
  const Status status = RunAndCheck(Apply(scenario), &history);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_GE(history.virtual_ns, 3'600'000'000'000);
  EXPECT_EQ(Completions(history), 4u);
  // An hour without work: no more rounds than the submission needed, and no more steps.
  EXPECT_LE(history.sets[0].members[0].counters.rounds, 4u);
  EXPECT_LE(history.steps, 1000u);
}

TEST_P(EveryStrategy, OperationsThatCanNeverCompleteFailAtOnceWhenAllWait) {
  Scenario scenario;
  scenario.ranks = 2;
  scenario.programs = {{Submit("a"), kWaitForAll, Submit("b"), kWaitForAll},
                       {Submit("b"), kWaitForAll, Submit("a"), kWaitForAll}};
  History history;
  const Status status = RunAndCheck(Apply(scenario), &history);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_GE(Failures(history), 2u);
  // They fail long before stall_fail_ns, because they can never complete.
  for (const auto& end : history.sets[0].members[0].ended) EXPECT_LT(end.time_ns, 50'000'000) << end.status.message();
}

TEST_P(EveryStrategy, TheSameSeedGivesTheSameHistory) {
  const Scenario scenario = Make({.seed = 5, .ranks = 5, .sets = 3, .kill = 1000});
  History one, two;
  ASSERT_TRUE(RunAndCheck(scenario, &one).ok());
  ASSERT_TRUE(RunAndCheck(scenario, &two).ok());
  EXPECT_EQ(one.steps, two.steps);
  EXPECT_EQ(one.virtual_ns, two.virtual_ns);
  EXPECT_EQ(one.messages, two.messages);
  EXPECT_EQ(one.bytes, two.bytes);
}

INSTANTIATE_TEST_SUITE_P(Simulation, EveryStrategy,
                         ::testing::Combine(::testing::Values("bits", "leaders", "coordinator", "tree"),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param) + (std::get<1>(info.param) ? "OverALink" : "InSharedMemory");
                         });

// A rank has contributed to a round that no other rank has a reason to join. Then it gets a request that needs the
// coordinator.
TEST(Regression, AFlushDuringAnOpenRoundStartsAnotherRound) {
  Scenario scenario = RandomScenario({.seed = 5610,
                                      .ranks = 5,
                                      .sets = 4,
                                      .steps = 4,
                                      .tensors = 3,
                                      .group = 485,
                                      .new_name = 168,
                                      .change = 199,
                                      .join = 355});
  scenario.strategy = "leaders";
  scenario.radix = 3;
  scenario.ranks_per_host = 1;
  scenario.delay_words = true;
  scenario.max_delay_ns = 300'000;
  scenario.controller.cache_capacity = 2;
  scenario.controller.cache_capacity_fixed = true;
  scenario.controller.stall_check = false;
  const Status status = RunAndCheck(scenario);
  EXPECT_TRUE(status.ok()) << status.message();
}

// ---- the checkers find seeded bugs ----

// True if the checkers find an error in a job with this sabotage, for some seed; `*text` is their message.
template <typename F>
bool Caught(F&& sabotage, std::string* text, Options options = {}) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    options.seed = seed;
    Scenario scenario = RandomScenario(options);
    scenario.max_steps = 100'000;
    sabotage(&scenario);
    const Status status = RunAndCheck(scenario);
    if (status.ok()) continue;
    *text = status.message();
    return true;
  }
  return false;
}

TEST(SeededBug, AFlagThatIsNotNegatedIsCaught) {
  std::string text;
  EXPECT_TRUE(Caught(
      [](Scenario* scenario) {
        scenario->sabotage.on_publish = [](int, int, uint64_t, std::vector<uint64_t>* words) {
          // Flags are negated, so each set bit says that the rank does not raise the flag. Without kStalled, the gather
          // would come about by a stall inspection.
          (*words)[control::kFlagWord] |= control::kUncached | control::kStalled;
        };
      },
      &text));
  EXPECT_NE(text.find("nothing will wake it"), std::string::npos) << text;
}

TEST(SeededBug, AnEvictionOnOneRankOnlyIsCaught) {
  std::string text;
  EXPECT_TRUE(Caught(
      [](Scenario* scenario) {
        scenario->controller.cache_capacity_fixed = true;
        scenario->sabotage.on_config = [](int, int rank, control::ControllerConfig* config) {
          if (rank == 1) config->cache_capacity = 3;
        };
      },
      &text));
  EXPECT_NE(text.find("cache"), std::string::npos) << text;
}

TEST(SeededBug, AResultThatOneRankReadsDifferentlyIsCaught) {
  std::string text;
  EXPECT_TRUE(Caught(
      [](Scenario* scenario) {
        scenario->sabotage.on_result = [](int, int rank, uint64_t round, std::vector<uint64_t>* words) {
          if (rank == 2 && round == 4 && words->size() > control::kFirstBitWord) {
            uint64_t& bits = (*words)[control::kFirstBitWord];
            bits &= bits - 1;  // rank 2 misses one agreed tensor
          }
        };
      },
      &text));
}

TEST(SeededBug, AnAgreementThatMissesTheBitsOfOneRankIsCaught) {
  std::string text;
  EXPECT_TRUE(Caught(
      [](Scenario* scenario) {
        scenario->strategy = "leaders";
        // Every ring and frame arrives, but the bitvector of rank 1 never contains a cache bit.
        scenario->sabotage.on_publish = [](int, int rank, uint64_t, std::vector<uint64_t>* words) {
          if (rank == 1) std::fill(words->begin() + control::kFirstBitWord, words->end(), 0);
        };
        scenario->controller.stall_check = false;
      },
      &text));
  EXPECT_NE(text.find("nothing will wake it"), std::string::npos) << text;
}

TEST(SeededBug, OneLaneForAllProcessSetsIsCaughtAsADeadlock) {
  std::string text;
  EXPECT_TRUE(Caught([](Scenario* scenario) { scenario->sabotage.one_lane_per_rank = true; }, &text,
                     {.ranks = 4, .sets = 4, .steps = 8}));
  EXPECT_NE(text.find("wait in a circle"), std::string::npos) << text;
}

TEST(SeededBug, APayloadThatOneRankReadsDifferentlyIsCaught) {
  std::string text;
  EXPECT_TRUE(Caught(
      [](Scenario* scenario) {
        scenario->sabotage.on_payload = [](int, int rank, int from, std::vector<uint64_t>* payload) {
          if (rank == 1 && from == 2 && !payload->empty()) payload->back() ^= 1;
        };
      },
      &text, {.small = 700}));
  EXPECT_NE(text.find("the inline data of the round"), std::string::npos) << text;
}

TEST(SeededBug, APayloadThatAllRanksReadWronglyIsCaught) {
  std::string text;
  EXPECT_TRUE(Caught(
      [](Scenario* scenario) {
        scenario->sabotage.on_payload = [](int, int, int from, std::vector<uint64_t>* payload) {
          if (from == 2 && payload->size() > 1) std::swap(payload->front(), payload->back());
        };
      },
      &text, {.small = 700}));
  EXPECT_NE(text.find("had other data of rank 2"), std::string::npos) << text;
}

TEST(SeededBug, ADifferentInlineLimitOnOneRankIsCaught) {
  std::string text;
  EXPECT_TRUE(Caught(
      [](Scenario* scenario) {
        scenario->sabotage.on_config = [](int, int rank, control::ControllerConfig* config) {
          if (rank == 1) config->inline_max_bytes = 8;
        };
      },
      &text, {.small = 700}));
}

TEST(SeededBug, ADifferentFusionThresholdOnOneRankIsCaught) {
  std::string text;
  EXPECT_TRUE(Caught(
      [](Scenario* scenario) {
        scenario->sabotage.on_config = [](int, int rank, control::ControllerConfig* config) {
          if (rank == 0) config->fusion_threshold_bytes = 0;
        };
      },
      &text));
  EXPECT_NE(text.find("differs from that of rank"), std::string::npos) << text;
}

}  // namespace
}  // namespace horocache::testing
