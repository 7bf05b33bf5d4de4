#include <gtest/gtest.h>

#include "control/test_network.h"

namespace horocache::control {
namespace {

TEST(Shutdown, ClosesTheSetOnAllRanksAndNamesTheRankThatLeft) {
  TestJob job(3);
  const OpId zero = job.Submit(0, Tensor("x"));
  job.SubmitAll(Tensor("cached"));
  job.RunFor(5 * kMs);
  const OpId cached = job.Submit(1, Tensor("cached"));
  job.RunFor(5 * kMs);
  job[2].Leave();
  job.Touch(2);
  job.Settle();
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(job[rank].closed());
  EXPECT_EQ(job.Of(0, zero).status.code(), StatusCode::kShutDown);
  EXPECT_EQ(job.Of(0, zero).status.message(),
            "rank 2 has shut down while allreduce 'x' was pending on rank 0. Run the same number of operations on all "
            "ranks, or call join() on those that end early.");
  EXPECT_NE(job.Of(1, cached).status.message().find("rank 2 has shut down while allreduce 'cached'"),
            std::string::npos);
  const OpId late = job.Submit(1, Tensor("y"));
  EXPECT_EQ(job.Of(1, late).status.code(), StatusCode::kShutDown);
  EXPECT_NE(job.Of(1, late).status.message().find("rank 2"), std::string::npos);
  for (int rank = 0; rank < 3; ++rank) EXPECT_FALSE(job[rank].HasPending());
}

TEST(Shutdown, AllAtOnceTakesOneRound) {
  TestJob job(4);
  const auto ops = job.SubmitAll(Tensor("x"));
  job.RunFor(5 * kMs);
  ASSERT_TRUE(job.Done(ops));
  const uint64_t rounds = job[0].counters().rounds;
  for (int rank = 0; rank < 4; ++rank) {
    job[rank].Leave();
    job.Touch(rank);
  }
  job.Settle();
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(job[rank].closed());
  EXPECT_EQ(job[0].counters().rounds, rounds + 1);
  EXPECT_EQ(job.NextWake(), kNever);
}

TEST(Shutdown, OperationsOfTheSameRoundStillRun) {
  TestJob job(2);
  job.SubmitAll(Tensor("cached"));
  job.RunFor(5 * kMs);
  const OpId mine = job.Submit(0, Tensor("cached"));
  job.RunFor(5 * kMs);
  const OpId theirs = job.Submit(1, Tensor("cached"));
  const OpId new_mine = job.Submit(0, Tensor("new"));
  const OpId new_theirs = job.Submit(1, Tensor("new"));
  job[1].Leave();
  job.Touch(1);
  job.Settle();
  EXPECT_TRUE(job.Done({mine, theirs}));
  EXPECT_TRUE(job.Done({new_mine, new_theirs}));
  EXPECT_TRUE(job[0].closed());
}

TEST(Shutdown, SubmittingAfterLeavingIsAnError) {
  TestJob job(2);
  job[0].Leave();
  EXPECT_EQ(job.Of(0, job.Submit(0, Tensor("x"))).status.code(), StatusCode::kShutDown);
}

TEST(Shutdown, ReachesAJoinedRank) {
  TestJob job(2);
  const OpId join = job.Submit(0, OfOp(wire::Op::kJoin, "join"));
  job.RunFor(5 * kMs);
  job[1].Leave();
  job.Touch(1);
  job.Settle();
  EXPECT_EQ(job.Of(0, join).status.code(), StatusCode::kShutDown);
  EXPECT_TRUE(job[0].closed());
}

TEST(Abort, FailsAllOperationsOnAllRanksWithTheReason) {
  TestJob job(3);
  const OpId zero = job.Submit(0, Tensor("x"));
  const OpId two = job.Submit(2, Tensor("y"));
  job.RunFor(5 * kMs);
  job[1].Abort("ValueError: bad batch");
  job.Touch(1);
  job.Settle();
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(job[rank].closed());
  EXPECT_EQ(job.Of(0, zero).status.code(), StatusCode::kAborted);
  EXPECT_EQ(job.Of(0, zero).status.message(),
            "allreduce 'x' was pending on rank 0: rank 1 aborted: ValueError: bad batch");
  EXPECT_EQ(job.Of(2, two).status.code(), StatusCode::kAborted);
  EXPECT_EQ(job.Of(2, job.Submit(2, Tensor("z"))).status.code(), StatusCode::kAborted);
  EXPECT_EQ(job.reports[2].size(), 1u);
}

TEST(Lose, FailsPendingAndLaterOperationsOnThisRank) {
  TestJob job(2);
  job.SubmitAll(Tensor("cached"));
  job.RunFor(5 * kMs);
  const OpId hit = job.Submit(0, Tensor("cached"));
  const OpId miss = job.Submit(0, Tensor("x"));
  job[0].EndWith({StatusCode::kPeerLost, "rank 1 (host a, pid 7) died by SIGKILL."});
  job.Touch(0);
  job.Settle();
  EXPECT_EQ(job.Of(0, hit).status.code(), StatusCode::kPeerLost);
  EXPECT_EQ(job.Of(0, miss).status.code(), StatusCode::kPeerLost);
  EXPECT_NE(job.Of(0, miss).status.message().find("rank 1 (host a, pid 7) died by SIGKILL."), std::string::npos);
  EXPECT_NE(job.Of(0, miss).status.message().find("allreduce 'x'"), std::string::npos);
  EXPECT_TRUE(job[0].closed());
  EXPECT_FALSE(job[0].HasPending());
  EXPECT_EQ(job.Of(0, job.Submit(0, Tensor("y"))).status.code(), StatusCode::kPeerLost);
  job[0].EndWith({StatusCode::kPeerLost, "again"});  // the first reason stays
  EXPECT_NE(job.Of(0, job.Submit(0, Tensor("y"))).status.message().find("SIGKILL"), std::string::npos);
}

TEST(Lose, InTheMiddleOfARoundEndsEveryOpOnce) {
  for (int steps = 0; steps < 12; ++steps) {
    TestJob job(3);
    job.single_steps = true;
    job.SubmitAll(Tensor("cached"));
    job.RunFor(5 * kMs);
    for (const char* name : {"cached", "new"}) job.SubmitAll(Tensor(name));
    job.WaitAll();
    for (int i = 0; i < steps; ++i) job.StepRank(i % 3);
    for (int rank = 0; rank < 3; ++rank) {
      job[rank].EndWith({StatusCode::kPeerLost, "gone"});
      job.Touch(rank);
    }
    job.Settle();
    for (int rank = 0; rank < 3; ++rank) {
      for (const auto& [op, outcome] : job.outcomes[static_cast<size_t>(rank)]) EXPECT_TRUE(outcome.done()) << op;
    }
  }
}

}  // namespace
}  // namespace horocache::control
