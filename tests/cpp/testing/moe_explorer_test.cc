#include "testing/moe_explorer.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/sanitized.h"

namespace horocache::testing {
namespace {

using moe::kForever;
using moe::Outcome;
using moe::Plan;

// States of random cases: more by HC_TEST_EXCHANGE_STATES.
uint64_t StatesToExplore() {
  const char* const given = std::getenv("HC_TEST_EXCHANGE_STATES");
  return given != nullptr ? std::stoull(given) : kSanitized ? 200'000 : 3'000'000;
}

// Explores random cases until that many states are met; 1 of `parts`, and at most a quarter of it for each.
void ExploreRandomCases(int ranks, int rounds, uint64_t parts) {
  const uint64_t states = StatesToExplore() / parts;
  uint64_t explored = 0, complete = 0, seed = 0;
  for (; explored < states; ++seed) {
    const ExchangeCase tested = RandomExchangeCase(seed, ranks, rounds);
    const Exploration found = Explore(tested, states / 4);
    ASSERT_EQ(found.fault, "") << "seed " << seed << ", " << ranks << " ranks, " << rounds << " rounds";
    explored += found.states;
    complete += found.complete;
  }
  std::printf("%d ranks, %d rounds: %llu cases, %llu of them completely, %llu states\n", ranks, rounds,
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(complete),
              static_cast<unsigned long long>(explored));
  EXPECT_TRUE(complete > 0 || kSanitized);
}

TEST(ExchangeExplorer, OneRankInThreeRounds) {
  for (uint64_t seed = 0; seed < 100; ++seed) EXPECT_EQ(Explore(RandomExchangeCase(seed, 1, 3), 1000).fault, "");
}
TEST(ExchangeExplorer, TwoRanksInTwoRounds) { ExploreRandomCases(2, 2, 10); }
TEST(ExchangeExplorer, TwoRanksInThreeRounds) { ExploreRandomCases(2, 3, 10); }
TEST(ExchangeExplorer, ThreeRanksInOneRound) { ExploreRandomCases(3, 1, 10); }
TEST(ExchangeExplorer, ThreeRanksInTwoRounds) { ExploreRandomCases(3, 2, 3); }
TEST(ExchangeExplorer, FourRanksInOneRound) { ExploreRandomCases(4, 1, 1); }
TEST(ExchangeExplorer, FourRanksInTwoRounds) { ExploreRandomCases(4, 2, 2); }

// All ranks are hosts with tokens for all.
ExchangeCase Uniform(int ranks, int rounds, const Plan& plan) {
  Plan each = plan;
  each.rows.assign(static_cast<size_t>(ranks), 1);
  ExchangeCase tested;
  tested.hosts.assign(static_cast<size_t>(ranks), true);
  tested.plans.assign(static_cast<size_t>(rounds), std::vector<Plan>(static_cast<size_t>(ranks), each));
  return tested;
}

bool Sees(const Exploration& found, Outcome outcome) { return found.seen[static_cast<size_t>(outcome)]; }

TEST(ExchangeExplorer, L6WithoutEarlyExitEverythingIsDeliveredInAnySchedule) {
  for (const uint32_t depth : {1u, 2u}) {
    ExchangeCase tested = Uniform(3, 2, {.epsilon = 2});
    tested.depth = depth;
    const Exploration found = Explore(tested, 5'000'000);
    EXPECT_EQ(found.fault, "");
    EXPECT_TRUE(found.complete);
    EXPECT_TRUE(Sees(found, Outcome::kDelivered));
    EXPECT_FALSE(Sees(found, Outcome::kHostLeft) || Sees(found, Outcome::kOwnTimeout));
  }
}

TEST(ExchangeExplorer, L4WithoutTimeOutsOnlyTheTokensForADeadRankAreLost) {
  ExchangeCase tested = Uniform(3, 1, {.epsilon = 2});
  tested.deaths = 1;
  const Exploration found = Explore(tested, 5'000'000);
  EXPECT_EQ(found.fault, "");
  EXPECT_TRUE(found.complete);
  EXPECT_TRUE(Sees(found, Outcome::kLostRank));
  EXPECT_FALSE(Sees(found, Outcome::kOwnTimeout));
}

// Every pair of hosts, routings, epsilon and durations, in one round and with up to one death.
TEST(ExchangeExplorer, L1AllCasesOfTwoRanksInOneRound) {
  int cases = 0;
  for (int bits = 0; bits < 3 << 11; ++bits) {
    const auto bit = [bits](int at) { return (bits >> at & 1) != 0; };
    const int hosts = 1 + (bits >> 11);
    ExchangeCase tested;
    tested.hosts = {(hosts & 1) != 0, (hosts & 2) != 0};
    tested.deaths = bit(10);
    tested.plans.resize(1);
    bool possible = true;
    for (int rank = 0; rank < 2; ++rank) {
      const int at = 5 * rank;
      Plan plan{.rows = {bit(at), bit(at + 1)}, .epsilon = bit(at + 2)};
      if (bit(at + 3)) plan.tau_ns = 1;
      if (bit(at + 4)) plan.limit_ns = 1;
      for (size_t host = 0; host < 2; ++host) possible &= tested.hosts[host] || plan.rows[host] == 0;
      tested.plans[0].push_back(plan);
    }
    if (!possible) continue;
    const Exploration found = Explore(tested, 100'000);
    ASSERT_EQ(found.fault, "");
    ASSERT_TRUE(found.complete);
    ++cases;
  }
  EXPECT_EQ(cases, 2 * 64 * (4 + 4 + 16));
}

}  // namespace
}  // namespace horocache::testing
