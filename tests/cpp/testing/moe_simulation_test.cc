#include "testing/moe_simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/sanitized.h"

namespace horocache::testing {
namespace {

using moe::kForever;
using moe::kNumOutcomes;
using moe::Outcome;
using moe::Plan;

constexpr int32_t kRows = 6;  // of every batch in a uniform world

// All ranks are hosts and have equally many tokens for each. The last `late` ranks enter each round late by `late_ns`.
ExchangeWorld UniformWorld(int ranks, Plan plan, int late = 0, int64_t late_ns = 0) {
  ExchangeWorld world;
  world.hosts.assign(static_cast<size_t>(ranks), true);
  plan.rows.assign(static_cast<size_t>(ranks), kRows);
  world.plan = [plan](int, uint32_t) { return plan; };
  world.pause = [first_late = ranks - late, late_ns](int rank, uint32_t) { return rank >= first_late ? late_ns : 0; };
  return world;
}

int64_t Dropped(const ExchangeHistory& history, int rank = -1) {
  return history.Sent(rank) - history.Rows(Outcome::kDelivered, rank);
}

// When each rank has left its first round.
std::vector<int64_t> Exits(const ExchangeHistory& history) {
  std::vector<int64_t> exits;
  for (const auto& records : history.ranks) exits.push_back(records[0].left_ns);
  return exits;
}

ExchangeHistory Checked(const ExchangeWorld& world) {
  ExchangeHistory history = Simulate(world);
  EXPECT_EQ(CheckExchanges(world, history), "");
  return history;
}

void ExpectConservation(const ExchangeHistory& history) {
  for (int rank = -1; rank < static_cast<int>(history.ranks.size()); ++rank) {
    int64_t sum = 0;
    for (int outcome = 1; outcome < kNumOutcomes; ++outcome) sum += history.Rows(static_cast<Outcome>(outcome), rank);
    EXPECT_EQ(sum, history.Sent(rank)) << "rank " << rank;
  }
}

TEST(OneSidedExchangeSimulation, L1EveryRankReturnsFromRandomSchedules) {
  const char* const given = std::getenv("HC_TEST_EXCHANGE_SCHEDULES");
  const uint64_t schedules = given != nullptr ? std::stoull(given) : kSanitized ? 200 : 2000;
  std::vector<int64_t> rows(kNumOutcomes, 0);
  for (uint64_t seed = 0; seed < schedules; ++seed) {
    const ExchangeWorld world = RandomExchangeWorld(seed);
    const ExchangeHistory history = Simulate(world);
    ASSERT_EQ(CheckExchanges(world, history), "") << "seed " << seed;
    for (size_t i = 0; i < rows.size(); ++i) rows[i] += history.Rows(static_cast<Outcome>(i));
  }
  EXPECT_EQ(rows[static_cast<size_t>(Outcome::kWaiting)], 0);
  for (size_t i = static_cast<size_t>(Outcome::kDelivered); i < rows.size(); ++i) {
    EXPECT_GT(rows[i], 0) << "no schedule has outcome " << i;
  }
}

// exit <= the last entry + the rank's own work + tau.
TEST(OneSidedExchangeSimulation, L1ARankLeavesWithinItsWorkAndTauAfterTheLastEntry) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const int ranks = 2 + static_cast<int>(seed % 5);
    ExchangeWorld world = UniformWorld(ranks, {.epsilon = static_cast<int>(seed % 3), .tau_ns = 50}, 1, 300);
    world.seed = seed;
    world.max_delay_ns = 10;
    const ExchangeHistory history = Checked(world);
    // A batch's delay, a result's, and those who serve it are busy with all other batches.
    const int64_t bound_ns = 300 + 2 * 10 + 2 * ranks * world.serve_ns + 50;
    for (const int64_t exit_ns : Exits(history)) EXPECT_LE(exit_ns, bound_ns) << "seed " << seed;
  }
}

// When ranks 0 to 2 of four leave without rank 3, if a batch takes 1 and tau is 5. With epsilon 0 the countdown starts
// after the own batch, which is served first, at 1; otherwise after the result of another rank, when all are served,
// at 3.
int64_t FastExit(int epsilon) { return epsilon == 0 ? 1 + 5 : 3 + 5; }

TEST(OneSidedExchangeSimulation, L3ASlowRankDelaysNoFastRank) {
  for (int epsilon = 0; epsilon < 3; ++epsilon) {
    for (const int64_t late_ns : {100, 1000, 10'000}) {
      const ExchangeHistory history = Checked(UniformWorld(4, {.epsilon = epsilon, .tau_ns = 5}, 1, late_ns));
      // Rank 3 sees that the others have left, so it serves its own batch only.
      const int64_t fast_ns = FastExit(epsilon);
      EXPECT_EQ(Exits(history), (std::vector<int64_t>{fast_ns, fast_ns, fast_ns, late_ns + 1}))
          << "epsilon " << epsilon;
      EXPECT_EQ(Dropped(history, 0), kRows);
      EXPECT_EQ(Dropped(history, 3), 3 * kRows);
      EXPECT_EQ(history.Rows(Outcome::kOwnTimeout), 3 * kRows);
      EXPECT_EQ(history.Rows(Outcome::kHostLeft), 3 * kRows);
    }
  }
}

TEST(OneSidedExchangeSimulation, L3RanksThatInsistOnTheSlowRankWaitForItAndLoseNothing) {
  const ExchangeHistory history = Checked(UniformWorld(4, {.epsilon = 3, .tau_ns = 5}, 1, 100));
  EXPECT_EQ(Exits(history), (std::vector<int64_t>{101, 102, 103, 104}));
  EXPECT_EQ(Dropped(history), 0);
  for (int epsilon = 0; epsilon < 4; ++epsilon) {
    EXPECT_EQ(Dropped(Checked(UniformWorld(4, {.epsilon = epsilon}, 1, 100))), 0) << "tau infinite";
  }
}

TEST(OneSidedExchangeSimulation, L3LateRanksCostTwiceTheirShareTimesTheOthersShare) {
  for (int ranks = 2; ranks <= 12; ++ranks) {
    for (int late = 1; late < ranks; ++late) {
      const ExchangeHistory history =
          Checked(UniformWorld(ranks, {.epsilon = ranks - 1 - late, .tau_ns = 50}, late, 10'000));
      // 2 s (n - s) / n^2 of all rows.
      EXPECT_EQ(Dropped(history) * ranks * ranks, history.Sent() * 2 * late * (ranks - late))
          << ranks << " ranks, " << late << " late";
    }
  }
}

TEST(OneSidedExchangeSimulation, L4ADeadRankCostsItsOwnTokensOnly) {
  for (int epsilon = 0; epsilon < 4; ++epsilon) {
    for (const bool noticed : {false, true}) {
      ExchangeWorld world = UniformWorld(4, {.epsilon = epsilon, .tau_ns = 5, .limit_ns = 200}, 1, 100);
      world.dies_at_ns = {kForever, kForever, kForever, 0};
      if (noticed) world.notice_ns = 50;
      const ExchangeHistory history = Checked(world);
      const int64_t exit_ns = epsilon < 3 ? FastExit(epsilon) : noticed ? 50 : 200;
      for (int rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(history.ranks[static_cast<size_t>(rank)][0].left_ns, exit_ns) << "epsilon " << epsilon;
        EXPECT_EQ(Dropped(history, rank), kRows);
      }
      EXPECT_EQ(history.Rows(Outcome::kLostRank), epsilon == 3 && noticed ? 3 * kRows : 0);
    }
  }
}

TEST(OneSidedExchangeSimulation, L4WithoutALimitANoticeEndsTheWaitForADeadRank) {
  ExchangeWorld world = UniformWorld(4, {.epsilon = 3}, 1, 100);
  world.rounds = 20;
  world.dies_at_ns = {kForever, kForever, kForever, 1000};
  world.notice_ns = 70;
  const ExchangeHistory history = Checked(world);
  EXPECT_EQ(history.Rows(Outcome::kOwnTimeout), 0);
  EXPECT_GT(history.Rows(Outcome::kLostRank), 0);
}

TEST(OneSidedExchangeSimulation, L5EachRowIsDeliveredOrHasACause) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    ExchangeWorld world = RandomExchangeWorld(seed);
    world.dies_at_ns.clear();
    ExpectConservation(Checked(world));
  }
}

TEST(OneSidedExchangeSimulation, L6WithoutEarlyExitNothingIsDropped) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    ExchangeWorld world = RandomExchangeWorld(seed);
    world.dies_at_ns.clear();
    const auto plan = world.plan;
    world.plan = [plan](int rank, uint32_t round) {
      Plan drawn = plan(rank, round);
      return Plan{.rows = drawn.rows, .epsilon = static_cast<int>(drawn.rows.size()) - 1};
    };
    EXPECT_EQ(Dropped(Checked(world)), 0) << "seed " << seed;
  }
}

TEST(OneSidedExchangeSimulation, M6AllEpsilonAndTauIn200Rounds) {
  for (const int ranks : {2, 3, 4, 8}) {
    for (int epsilon = 0; epsilon < ranks; ++epsilon) {
      for (const int64_t tau_ns : {int64_t{0}, int64_t{5}, kForever}) {
        ExchangeWorld world = UniformWorld(ranks, {.epsilon = epsilon, .tau_ns = tau_ns});
        world.rounds = kSanitized ? 20 : 200;
        world.max_delay_ns = 7;
        world.seed = static_cast<uint64_t>(ranks * 10 + epsilon);
        const ExchangeHistory history = Checked(world);
        ExpectConservation(history);
        EXPECT_TRUE(tau_ns != kForever || Dropped(history) == 0);
      }
    }
  }
}

TEST(OneSidedExchangeSimulation, M8MoreEpsilonOrTauNeverDropsMoreNorLeavesSooner) {
  struct Result {
    int64_t dropped = 0, exits = 0;
  };
  const auto run = [](int epsilon, int64_t tau_ns) {
    const ExchangeHistory history = Checked(UniformWorld(4, {.epsilon = epsilon, .tau_ns = tau_ns}, 1, 300));
    Result result{.dropped = Dropped(history)};
    for (const int64_t exit_ns : Exits(history)) result.exits += exit_ns;
    return result;
  };
  for (int epsilon = 0; epsilon < 4; ++epsilon) {
    for (int64_t tau_ns = 0; tau_ns <= 400; tau_ns += 20) {
      const Result here = run(epsilon, tau_ns);
      for (const Result& more : {run(epsilon, tau_ns + 20), run(std::min(epsilon + 1, 3), tau_ns)}) {
        EXPECT_LE(more.dropped, here.dropped) << "epsilon " << epsilon << ", tau " << tau_ns;
        EXPECT_GE(more.exits, here.exits) << "epsilon " << epsilon << ", tau " << tau_ns;
      }
    }
  }
}

}  // namespace
}  // namespace horocache::testing
