#include "testing/moe_printed_explorer.h"

#include <gtest/gtest.h>

#include <ostream>
#include <vector>

namespace horocache::testing {
namespace {

using moe::PrintedExchange;

// How many cases deadlock, and how many miscount, in some schedule.
struct Tally {
  int deadlocks = 0, miscounts = 0;
  bool operator==(const Tally&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Tally& tally) {
  return out << tally.deadlocks << " deadlocks, " << tally.miscounts << " miscounts";
}

Tally ExploreAll(const std::vector<PrintedCase>& cases, const PrintedExchange::Changes& changes) {
  Tally tally;
  for (const PrintedCase& each : cases) {
    const PrintedExploration found = ExplorePrinted(PrintedExchange(each.hosts, each.routed, each.epsilon, changes));
    tally.deadlocks += found.deadlocks;
    tally.miscounts += found.miscounts;
  }
  return tally;
}

std::vector<Tally> ExploreAllByChanges(const std::vector<PrintedCase>& cases) {
  std::vector<Tally> tallies;
  for (const auto& changes : CumulativeChanges()) tallies.push_back(ExploreAll(cases, changes));
  return tallies;
}

// The tables of docs/explanation/one_sided_moe.md. Rows: printed; a batch to every host; an empty to every rank; state
// per peer; epsilon clamped, and an empty for any epsilon.

TEST(PrintedExplorer, L2AllCasesOfTwoRanks) {
  std::vector<PrintedCase> uniform, mixed;
  for (const PrintedCase& each : AllPrintedCasesOfTwoRanks()) (each.IsUniform() ? uniform : mixed).push_back(each);
  EXPECT_EQ(uniform.size(), 40u);
  EXPECT_EQ(mixed.size(), 40u);
  EXPECT_EQ(ExploreAllByChanges(uniform), (std::vector<Tally>{{6, 4}, {0, 0}, {0, 0}, {0, 0}, {0, 0}}));
  EXPECT_EQ(ExploreAllByChanges(mixed), (std::vector<Tally>{{28, 4}, {18, 0}, {18, 0}, {18, 0}, {0, 0}}));
}

TEST(PrintedExplorer, L2RandomCasesOfThreeRanksWithOneEpsilon) {
  const std::vector<PrintedCase> cases = RandomPrintedCasesOfThreeRanks(1, 70, /*uniform=*/true);
  EXPECT_EQ(cases.size(), 210u);
  EXPECT_EQ(ExploreAllByChanges(cases), (std::vector<Tally>{{98, 16}, {8, 17}, {2, 27}, {0, 0}, {0, 0}}));
}

TEST(PrintedExplorer, L2RandomCasesOfThreeRanksWithMixedEpsilons) {
  const std::vector<PrintedCase> cases = RandomPrintedCasesOfThreeRanks(2, 70, /*uniform=*/false);
  const std::vector<Tally> tallies = ExploreAllByChanges(cases);
  EXPECT_EQ(tallies[0].deadlocks, 50);
  EXPECT_EQ(tallies[3].deadlocks, 18) << "only with the guard of line 28";
  EXPECT_EQ(tallies[4], (Tally{0, 0}));
}

// All changes but one.
TEST(PrintedExplorer, EachOfThreeChangesIsNeededWithAllOtherOnes) {
  std::vector<PrintedCase> cases = AllPrintedCasesOfTwoRanks();
  for (const bool uniform : {true, false}) {
    for (PrintedCase& each : RandomPrintedCasesOfThreeRanks(uniform ? 1 : 2, 70, uniform)) cases.push_back(each);
  }
  const PrintedExchange::Changes all = CumulativeChanges().back();
  PrintedExchange::Changes changes = all;
  changes.empty_to_every_rank = false;
  EXPECT_EQ(ExploreAll(cases, changes), (Tally{123, 0}));
  changes = all;
  changes.state_per_peer = false;
  EXPECT_EQ(ExploreAll(cases, changes), (Tally{20, 316}));
  changes = all;
  changes.empty_for_any_epsilon = false;
  EXPECT_EQ(ExploreAll(cases, changes), (Tally{36, 0}));
  // The countdown stands in for the other two; without them, a round takes it where no rank is late.
  changes = all;
  changes.batch_to_every_host = false;
  EXPECT_EQ(ExploreAll(cases, changes), (Tally{0, 0}));
  changes = all;
  changes.epsilon_clamped = false;
  EXPECT_EQ(ExploreAll(cases, changes), (Tally{0, 0}));
}

}  // namespace
}  // namespace horocache::testing
