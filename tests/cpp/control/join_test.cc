#include <gtest/gtest.h>

#include "control/join_rules.h"
#include "test_network.h"

namespace horocache::control {
namespace {

wire::Signature JoinOp() { return OfOp(wire::Op::kJoin, "join"); }

TEST(Join, AllreduceGoesOnWithoutTheRanksThatJoined) {
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

TEST(Join, EndsWhenAllHaveJoinedAndTellsWhoWasLast) {
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
  // Nobody has joined any more.
  const auto ops = job.SubmitAll(Tensor("x"));
  job.RunFor(5 * kMs);
  EXPECT_TRUE(job.Done(ops));
  EXPECT_TRUE(job.plans[0].back().joined.empty());
}

TEST(Join, OneRankJoinsItself) {
  TestJob job(1);
  const OpId join = job.Submit(0, JoinOp());
  job.Settle();
  EXPECT_EQ(job.Of(0, join).plans, 1);
  EXPECT_EQ(job.plans[0].back().last_joined, 0);
}

TEST(Join, WaitsForWhatThisRankSubmittedBefore) {
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

TEST(Join, CompletesWhatOnlyTheJoinedRankWasMissingIn) {
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

TEST(Join, SubmittingAfterItIsAnError) {
  TestJob job(2);
  job.Submit(0, JoinOp());
  EXPECT_EQ(job.Of(0, job.Submit(0, Tensor("x"))).status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(job.Of(0, job.Submit(0, JoinOp())).status.code(), StatusCode::kInvalidArgument);
}

TEST(Join, WhatNeedsEveryRankFailsOnTheOthersCachedOrNot) {
  TestJob job(3);
  wire::Signature alltoall = OfOp(wire::Op::kAlltoall, "a2a");
  alltoall.tensors[0].shape = {-1};
  const std::vector<std::pair<wire::Signature, bool>> cases = {
      {alltoall, false},
      {OfOp(wire::Op::kReduce, "reduce", 0), false},
      {OfOp(wire::Op::kBarrier, "barrier"), false},
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

TEST(Join, TheRulesNameTheRankAndWhatToDo) {
  RankSet joined(4);
  joined.Add(1);
  EXPECT_EQ(CheckJoined(OfOp(wire::Op::kBroadcast, "b", 1), joined).message(),
            "broadcast 'b': its root, rank 1, has joined and has nothing to send. Broadcast from a rank that has not "
            "joined, or before join().");
  joined.Add(3);
  EXPECT_EQ(
      CheckJoined(OfOp(wire::Op::kBarrier, "b"), joined).message(),
      "barrier 'b' cannot run while ranks 1, 3 have joined: only allreduce, allgather, reducescatter and broadcast "
      "can do without a rank's data. Run it before join().");
  EXPECT_TRUE(CheckJoined(OfOp(wire::Op::kBarrier, "b"), RankSet(4)).ok());
}

}  // namespace
}  // namespace horocache::control
