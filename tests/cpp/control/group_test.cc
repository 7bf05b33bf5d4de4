#include <gtest/gtest.h>

#include "control/test_network.h"

namespace horocache::control {
namespace {

TEST(Group, NoMemberRunsBeforeAllRanksHaveAllMembers) {
  TestJob job(3);
  job.WaitAll();
  for (int step = 0; step < 3; ++step) {
    const OpId zero = job.Submit(0, Group("g", {"a", "b", "c"}));
    const OpId one = job.Submit(1, Group("g", {"a", "b", "c"}));
    job.Settle();
    EXPECT_TRUE(job.plans[0].size() == static_cast<size_t>(step));
    const OpId two = job.Submit(2, Group("g", {"a", "b", "c"}));
    job.Settle();
    EXPECT_TRUE(job.Done({zero, one, two}));
    EXPECT_EQ(job.plans[2].back().items[0].num_tensors, 3);
  }
  EXPECT_EQ(job[0].cache_size(), 1);
}

void ExpectMismatch(TestJob& job, int rank, OpId op, const std::string& part) {
  EXPECT_EQ(job.Of(rank, op).status.code(), StatusCode::kMismatch)
      << "rank " << rank << job.Of(rank, op).status.ToString();
  EXPECT_NE(job.Of(rank, op).status.message().find(part), std::string::npos) << job.Of(rank, op).status.message();
}

TEST(Group, ATensorInDifferentGroupsOnTwoRanksFailsAtOnce) {
  TestJob job(2);
  const OpId zero = job.Submit(0, Group("g", {"a", "b"}));
  const OpId one = job.Submit(1, Group("h", {"b", "c"}));
  job.RunFor(5 * kMs);  // no rank waits: the failure does not need it
  const std::string text =
      "tensor 'b': rank 0 submitted it as a part of group 'g', rank 1 as a part of group 'h'. Rank 1's group lacks "
      "'a'. Rank 0's group lacks 'c'. Form the same groups on all ranks.";
  ExpectMismatch(job, 0, zero, text);
  ExpectMismatch(job, 1, one, text);
}

TEST(Group, ATensorAloneOnOneRankAndInAGroupOnAnotherFailsAtOnce) {
  TestJob job(2);
  const OpId zero = job.Submit(0, Tensor("a"));
  const OpId one = job.Submit(1, Group("g", {"a", "b"}));
  job.RunFor(5 * kMs);
  ExpectMismatch(job, 0, zero, "rank 0 submitted it by itself, rank 1 as a part of group 'g'");
  ExpectMismatch(job, 1, one, "Form the same groups");
  const auto again = job.SubmitAll(Group("g", {"a", "b"}));
  job.RunFor(5 * kMs);
  EXPECT_TRUE(job.Done(again));
}

TEST(Group, ALateRankGetsTheErrorOfAConflict) {
  TestJob job(3);
  const OpId zero = job.Submit(0, Group("g", {"a", "b"}));
  const OpId one = job.Submit(1, Tensor("a"));
  job.RunFor(5 * kMs);
  ExpectMismatch(job, 0, zero, "tensor 'a'");
  ExpectMismatch(job, 1, one, "tensor 'a'");
  // Rank 0 is already in its next step when rank 2 submits the group. Only rank 2's request fails.
  const OpId next = job.Submit(0, Group("g", {"a", "b"}));
  job.RunFor(5 * kMs);
  const OpId late = job.Submit(2, Group("g", {"a", "b"}));
  job.RunFor(5 * kMs);
  ExpectMismatch(job, 2, late, "tensor 'a'");
  EXPECT_FALSE(job.Of(0, next).done());
  const OpId next_one = job.Submit(1, Group("g", {"a", "b"}));
  const OpId next_two = job.Submit(2, Group("g", {"a", "b"}));
  job.RunFor(5 * kMs);
  EXPECT_TRUE(job.Done({next, next_one, next_two}));
}

// The group fails with all its members, also with those that rank 1 submits later, and the job goes on.
TEST(Group, EverySeparatelySubmittedMemberFailsInThisOrALaterRound) {
  for (const bool at_once : {true, false}) {
    TestJob job(2);
    const OpId group = job.Submit(0, Group("g", {"a", "b", "c"}));
    const OpId b = job.Submit(1, Tensor("b"));
    OpId a = at_once ? job.Submit(1, Tensor("a")) : OpId{};
    job.RunFor(5 * kMs);
    if (!at_once) a = job.Submit(1, Tensor("a"));
    job.RunFor(5 * kMs);
    ExpectMismatch(job, 0, group, "tensor 'b'");
    ExpectMismatch(job, 1, b, "tensor 'b'");
    ExpectMismatch(job, 1, a, "tensor 'b'");
    // Rank 1 never submitted c. Its next request contains a and b again, so it counts as a request of the next step.
    const auto next = job.SubmitAll(Group("g", {"a", "b", "c"}));
    job.RunFor(5 * kMs);
    EXPECT_TRUE(job.Done(next));
    const auto alone = job.SubmitAll(Tensor("c"));
    job.RunFor(5 * kMs);
    EXPECT_TRUE(job.Done(alone));
    job.ExpectEqualCaches();
  }
}

TEST(Group, AConflictBetweenCachedRequestsFailsWhenAllWait) {
  TestJob job(2);
  job.SubmitAll(Group("g", {"a", "b"}));
  job.RunFor(5 * kMs);
  job.SubmitAll(Tensor("a"));
  job.RunFor(5 * kMs);
  ASSERT_EQ(job[0].cache_size(), 2);
  const OpId zero = job.Submit(0, Group("g", {"a", "b"}));
  const OpId one = job.Submit(1, Tensor("a"));
  job.WaitAll();
  job.RunFor(5 * kMs);
  ExpectMismatch(job, 0, zero, "Form the same groups on all ranks");
  ExpectMismatch(job, 1, one, "Form the same groups on all ranks");
  for (int rank = 0; rank < 2; ++rank) job.StopWaiting(rank);
  const auto again = job.SubmitAll(Tensor("a"));
  job.RunFor(5 * kMs);
  EXPECT_TRUE(job.Done(again));
  job.ExpectEqualCaches();
}

TEST(Group, AGroupAndItsMembersMayAlternate) {
  TestJob job(2);
  for (int step = 0; step < 6; ++step) {
    const auto ops = step % 2 == 0 ? job.SubmitAll(Group("g", {"a", "b"})) : job.SubmitAll(Tensor("a"));
    job.RunFor(5 * kMs);
    EXPECT_TRUE(job.Done(ops));
  }
  EXPECT_EQ(job[0].counters().slow_rounds, 2u);  // both stay cached
}

TEST(Group, PiecesOfALargeGroupAreEqualOnAllRanks) {
  ControllerConfig config;
  config.fusion_threshold_bytes = 40;
  TestJob job(2, config);
  for (int step = 0; step < 2; ++step) {
    const auto ops = job.SubmitAll(Group("g", {"a", "b", "c", "d", "e"}));
    job.RunFor(5 * kMs);
    EXPECT_TRUE(job.Done(ops));
  }
  ASSERT_EQ(job.plans[0].size(), 6u);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(job.plans[static_cast<size_t>(rank)][1].items[0].first_tensor, 2);
    EXPECT_FALSE(job.plans[static_cast<size_t>(rank)][1].items[0].last_piece);
  }
}

}  // namespace
}  // namespace horocache::control
