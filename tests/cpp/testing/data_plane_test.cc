#include "testing/data_plane.h"

#include <gtest/gtest.h>

#include <vector>

#include "testing/schedule.h"

namespace horocache::testing {
namespace {

control::Plan PlanNumber(uint64_t sequence) { return control::Plan{.sequence = sequence}; }

Scenario CrossedSets(bool one_lane) {
  Scenario scenario;
  scenario.ranks = 3;
  scenario.sets = {{0, 1}, {1, 2}, {0, 2}};
  scenario.sabotage.one_lane_per_rank = one_lane;
  return scenario;
}

// Each rank learns of the plans of its two sets in another order: rank 0 waits for 1, 1 for 2, and 2 for 0.
void EnqueueCrossed(DataPlane* data_plane) {
  for (const auto& [set, member] : std::vector<std::pair<int, int>>{{0, 0}, {2, 0}, {1, 0}, {0, 1}, {2, 1}, {1, 1}}) {
    data_plane->Enqueue(set, member, PlanNumber(0), 0);
  }
}

TEST(DataPlane, EndsAPlanOnceAllMembersHaveStartedIt) {
  Scenario scenario;
  scenario.max_duration_ns = 0;
  DataPlane data_plane(scenario);
  std::vector<DataPlane::Done> done;
  data_plane.Enqueue(0, 0, PlanNumber(0), 5);
  EXPECT_EQ(data_plane.NextNs(), kNever);
  data_plane.Enqueue(0, 1, PlanNumber(0), 9);
  EXPECT_EQ(data_plane.NextNs(), 9);
  data_plane.AdvanceTo(9, &done);
  EXPECT_EQ(done.size(), 2u);
  EXPECT_TRUE(data_plane.idle());
}

TEST(DataPlane, RunsALaneInOrder) {
  Scenario scenario;
  scenario.max_duration_ns = 0;
  DataPlane data_plane(scenario);
  std::vector<DataPlane::Done> done;
  for (uint64_t sequence = 0; sequence < 3; ++sequence) {
    for (int member = 0; member < 2; ++member) data_plane.Enqueue(0, member, PlanNumber(sequence), 0);
  }
  data_plane.AdvanceTo(0, &done);
  ASSERT_EQ(done.size(), 6u);
  for (size_t i = 0; i < done.size(); ++i) EXPECT_EQ(done[i].plan.sequence, i / 2);
}

TEST(DataPlane, CrossedSetsEndWithALaneForEachSet) {
  const Scenario scenario = CrossedSets(false);
  DataPlane data_plane(scenario);
  std::vector<DataPlane::Done> done;
  EnqueueCrossed(&data_plane);
  data_plane.AdvanceTo(kNever - 1, &done);
  EXPECT_TRUE(data_plane.idle());
  EXPECT_TRUE(data_plane.FindCircle().ok());
}

TEST(DataPlane, NamesTheDeadlockOfOneLanePerRank) {
  const Scenario scenario = CrossedSets(true);
  DataPlane data_plane(scenario);
  EnqueueCrossed(&data_plane);
  EXPECT_EQ(data_plane.NextNs(), kNever);
  const std::string circle = data_plane.FindCircle().message();
  EXPECT_NE(circle.find("rank 0 in plan 0 of set 0 for rank 1; rank 1 in plan 0 of set 1 for rank 2; rank 2 in plan 0 "
                        "of set 2 for rank 0"),
            std::string::npos)
      << circle;
}

TEST(DataPlane, ReturnsThePlansThatALostMemberHasNotRun) {
  Scenario scenario;
  DataPlane data_plane(scenario);
  std::vector<DataPlane::Done> done;
  for (uint64_t sequence = 0; sequence < 2; ++sequence) {
    for (int member = 0; member < 2; ++member) data_plane.Enqueue(0, member, PlanNumber(sequence), 0);
  }
  EXPECT_EQ(data_plane.Drop(0, 0).size(), 2u);
  data_plane.AdvanceTo(kNever - 1, &done);
  EXPECT_TRUE(done.empty());
  EXPECT_EQ(data_plane.Drop(0, 1).size(), 2u);
  EXPECT_TRUE(data_plane.idle());
}

}  // namespace
}  // namespace horocache::testing
