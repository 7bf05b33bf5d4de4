#include "control/join.h"

#include <gtest/gtest.h>

#include "control/test_network.h"

namespace horocache::control {
namespace {

wire::Signature JoinOp() { return OfOp(wire::Op::kJoin, "join"); }

TEST(Join, AllreduceContinuesWithoutJoinedRanks) {
  TestJob job(3);
  job.SubmitAll(Tensor("cached"));
  job.RunFor(5 * kMs);
  const OpId join = job.Submit(2, JoinOp());
  job.RunFor(5 * kMs);
  for (const char* name : {"cached", "new", "new"}) {
    const size_t before = job.plans[2].size();
    const OpId zero = job.Submit(0, Tensor(name));
    const OpId one = job.Submit(1, Tensor(name));
    job.RunFor(5 * kMs);
    EXPECT_EQ(job.Of(0, zero).plans, 1) << name;
    EXPECT_EQ(job.Of(1, one).plans, 1);
    ASSERT_EQ(job.plans[2].size(), before + 1);
    const Plan& plan = job.plans[2].back();
    EXPECT_EQ(plan.items[0].op, kNoOp);
    EXPECT_EQ(plan.items[0].signature->name, name);
    EXPECT_EQ(plan.joined, std::vector<int32_t>{2});
    EXPECT_EQ(job.plans[0].back().joined, std::vector<int32_t>{2});
  }
  EXPECT_FALSE(job.Of(2, join).done());
}

TEST(Join, EndsWhenAllHaveJoinedAndReturnsTheLastRank) {
  TestJob job(3);
  const OpId one = job.Submit(1, JoinOp());
  job.RunFor(5 * kMs);
  const OpId two = job.Submit(2, JoinOp());
  job.RunFor(5 * kMs);
  EXPECT_FALSE(job.Of(1, one).done());
  const OpId zero = job.Submit(0, JoinOp());
  job.RunFor(5 * kMs);
  EXPECT_TRUE(job.Done({zero, one, two}));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(job.plans[static_cast<size_t>(rank)].back().op, wire::Op::kJoin);
    EXPECT_EQ(job.plans[static_cast<size_t>(rank)].back().last_joined, 0);
  }
  // The join is over: no rank counts as joined.
  const auto ops = job.SubmitAll(Tensor("x"));
  job.RunFor(5 * kMs);
  EXPECT_TRUE(job.Done(ops));
  EXPECT_TRUE(job.plans[0].back().joined.empty());
}

TEST(Join, WithOneRankEndsAtOnce) {
  TestJob job(1);
  const OpId join = job.Submit(0, JoinOp());
  job.Settle();
  EXPECT_EQ(job.Of(0, join).plans, 1);
  EXPECT_EQ(job.plans[0].back().last_joined, 0);
}

TEST(Join, WaitsForEarlierOperationsOfTheRank) {
  TestJob job(2);
  const OpId mine = job.Submit(0, Tensor("x"));
  const OpId join = job.Submit(0, JoinOp());
  job.RunFor(5 * kMs);
  const OpId theirs = job.Submit(1, Tensor("x"));
  job.RunFor(5 * kMs);
  EXPECT_EQ(job.Of(0, mine).plans, 1);
  EXPECT_EQ(job.Of(1, theirs).plans, 1);
  EXPECT_TRUE(job.plans[1].back().joined.empty()) << "rank 0's own data must take part";
  const OpId alone = job.Submit(1, Tensor("y"));
  job.RunFor(5 * kMs);
  EXPECT_EQ(job.Of(1, alone).plans, 1);
  EXPECT_FALSE(job.Of(0, join).done());
}

TEST(Join, CompletesOperationsThatOnlyTheJoinedRankLacked) {
  TestJob job(3);
  const OpId zero = job.Submit(0, Tensor("x"));
  const OpId one = job.Submit(1, Tensor("x"));
  job.RunFor(5 * kMs);
  EXPECT_FALSE(job.Of(0, zero).done());
  job.Submit(2, JoinOp());
  job.RunFor(5 * kMs);
  EXPECT_EQ(job.Of(0, zero).plans, 1);
  EXPECT_EQ(job.Of(1, one).plans, 1);
}

TEST(Join, SubmittingAfterAJoinIsAnError) {
  TestJob job(2);
  job.Submit(0, JoinOp());
  EXPECT_EQ(job.Of(0, job.Submit(0, Tensor("x"))).status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(job.Of(0, job.Submit(0, JoinOp())).status.code(), StatusCode::kInvalidArgument);
}

TEST(Join, OperationsWithAJoinedRootFailCachedOrNot) {
  TestJob job(3);
  wire::Signature alltoall = OfOp(wire::Op::kAlltoall, "a2a");
  alltoall.tensors[0].shape = {-1};
  const std::vector<std::pair<wire::Signature, bool>> cases = {
      {alltoall, true},
      {OfOp(wire::Op::kReduce, "to 0", 0), true},
      {OfOp(wire::Op::kReduce, "to 2", 2), false},
      {OfOp(wire::Op::kBarrier, "barrier"), true},
      {OfOp(wire::Op::kGather, "gathered by 2", 2), false},
      {OfOp(wire::Op::kGather, "gathered by 1", 1), true},
      {OfOp(wire::Op::kScatter, "scattered by 2", 2), false},
      {OfOp(wire::Op::kScatter, "scattered by 1", 1), true},
      {OfOp(wire::Op::kBroadcast, "from 2", 2), false},
      {OfOp(wire::Op::kBroadcast, "from 0", 0), true},
      {OfOp(wire::Op::kReducescatter, "rs"), true},
      {OfOp(wire::Op::kAllgather, "ag"), true},
  };
  for (const auto& [signature, works] : cases) job.SubmitAll(signature);
  job.RunFor(5 * kMs);
  job.Submit(2, JoinOp());
  job.RunFor(5 * kMs);
  for (const bool cached : {true, false}) {
    for (auto [signature, works] : cases) {
      if (!cached) signature.name += " uncached";
      const OpId zero = job.Submit(0, signature);
      const OpId one = job.Submit(1, signature);
      job.RunFor(5 * kMs);
      EXPECT_EQ(job.Of(0, zero).plans, works ? 1 : 0) << signature.name;
      EXPECT_EQ(job.Of(1, one).plans, works ? 1 : 0) << signature.name;
      if (works) continue;
      EXPECT_EQ(job.Of(0, zero).status.code(), StatusCode::kUnsupported);
      EXPECT_EQ(job.Of(0, zero).status.message(), job.Of(1, one).status.message());
      EXPECT_NE(job.Of(0, zero).status.message().find("joined"), std::string::npos);
    }
  }
  job.ExpectEqualCaches();
}

TEST(Join, ErrorsNameTheJoinedRankAndASolution) {
  RankSet joined(4);
  EXPECT_TRUE(CheckJoined(OfOp(wire::Op::kRegister, "process_set.1.add"), joined).ok());
  joined.Add(1);
  EXPECT_EQ(
      CheckJoined(OfOp(wire::Op::kRegister, "process_set.1.add"), joined).message(),
      "register 'process_set.1.add': rank 1 joined, and takes no part. Add and remove process sets before join(), "
      "or after it.");
  EXPECT_EQ(CheckJoined(OfOp(wire::Op::kBroadcast, "b", 1), joined).message(),
            "broadcast 'b': its root, rank 1, has joined and has nothing to send. Use a root that has not joined, or "
            "call it before join().");
  EXPECT_EQ(CheckJoined(OfOp(wire::Op::kReduce, "r", 1), joined, RankNames(2, {0, 3, 5, 7})).message(),
            "reduce 'r' of process set 2: its root, rank 3, has joined and takes no result. Use a root that has not "
            "joined, or call it before join().");
  EXPECT_TRUE(CheckJoined(OfOp(wire::Op::kBarrier, "b"), joined).ok());
  EXPECT_TRUE(CheckJoined(OfOp(wire::Op::kBroadcast, "b", 1), RankSet(4)).ok());
}

// ---- the divisor of an average

wire::Signature JoinBy(wire::DivideBy divide_by) {
  wire::Signature join = JoinOp();
  join.divide_by = divide_by;
  return join;
}

TEST(Join, TheFirstRankThatJoinsDecidesTheDivisorOfAverages) {
  for (const auto divide_by : {wire::DivideBy::kAll, wire::DivideBy::kActive}) {
    const bool active = divide_by == wire::DivideBy::kActive;
    TestJob job(4);
    job.SubmitAll(Tensor("cached"));
    job.RunFor(5 * kMs);
    std::vector<OpId> joins(4);
    for (int left = 4; left > 1; --left) {
      for (const char* name : {"cached", "new"}) {
        for (int rank = 0; rank < left; ++rank) job.Submit(rank, Tensor(name + std::to_string(left % 2)));
        job.RunFor(5 * kMs);
        for (int rank = 0; rank < 4; ++rank) {
          EXPECT_EQ(job.plans[static_cast<size_t>(rank)].back().divisor_ranks, active ? left : 4) << left << name;
        }
      }
      joins[static_cast<size_t>(left) - 1] = job.Submit(left - 1, JoinBy(divide_by));
      job.RunFor(5 * kMs);
    }
    joins[0] = job.Submit(0, JoinBy(divide_by));
    job.RunFor(5 * kMs);
    EXPECT_TRUE(job.Done(joins));
    job.SubmitAll(Tensor("after"));
    job.RunFor(5 * kMs);
    EXPECT_EQ(job.plans[2].back().divisor_ranks, 4);
  }
}

TEST(Join, DifferentDivisorsFailTheJoinOnAllRanksAndTheJobGoesOn) {
  ControllerConfig config;
  config.process_set = 3;
  config.names = RankNames(3, {1, 4, 6});
  TestJob job(3, config);
  std::vector<OpId> joins(3);
  joins[2] = job.Submit(2, JoinBy(wire::DivideBy::kActive));
  job.RunFor(5 * kMs);
  joins[0] = job.Submit(0, JoinBy(wire::DivideBy::kAll));
  job.RunFor(5 * kMs);
  const OpId alone = job.Submit(1, Tensor("x"));
  job.RunFor(5 * kMs);
  EXPECT_EQ(job.Of(1, alone).plans, 1);
  EXPECT_EQ(job.plans[0].back().divisor_ranks, 1) << "the divisor of the first rank applies";
  joins[1] = job.Submit(1, JoinBy(wire::DivideBy::kActive));
  job.RunFor(5 * kMs);
  for (int rank = 0; rank < 3; ++rank) {
    const Outcome& outcome = job.Of(rank, joins[static_cast<size_t>(rank)]);
    ASSERT_EQ(outcome.failures, 1) << rank;
    EXPECT_EQ(outcome.status.code(), StatusCode::kMismatch);
    EXPECT_EQ(outcome.status.message(),
              "join 'join' of process set 3: rank 6 submitted divide_by 'active', rank 1 submitted divide_by 'all'. "
              "Submit the same divide_by on all ranks.");
  }
  for (const bool again : {true, false}) {  // the failed join has no effect on later operations
    const auto ops = job.SubmitAll(again ? JoinBy(wire::DivideBy::kAll) : Tensor("after"));
    job.RunFor(5 * kMs);
    EXPECT_TRUE(job.Done(ops));
    EXPECT_EQ(job.plans[0].back().last_joined, again ? 6 : -1) << "a rank of the job";
  }
  job.ExpectEqualCaches();
}

}  // namespace
}  // namespace horocache::control
