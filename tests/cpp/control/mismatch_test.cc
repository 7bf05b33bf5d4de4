#include "control/mismatch.h"

#include <gtest/gtest.h>

#include "control/test_network.h"

namespace horocache::control {
namespace {

template <typename F>
std::string Between(wire::Signature base, F&& change) {
  wire::Signature other = base;
  change(other);
  return Difference(base, 0, other, 2);
}

TEST(Mismatch, NamesBothRanksAndBothValues) {
  const wire::Signature t = Tensor("grad.3", {4, 5});
  EXPECT_EQ(
      Between(t, [](auto& s) { s.tensors[0].shape = {4, 6}; }),
      "allreduce 'grad.3': rank 0 submitted shape [4, 5], rank 2 submitted shape [4, 6]. Submit the same shape on "
      "all ranks.");
  EXPECT_EQ(
      Between(t, [](auto& s) { s.tensors[0].shape = {}; }),
      "allreduce 'grad.3': rank 0 submitted shape [4, 5], rank 2 submitted shape []. Submit the same shape on all "
      "ranks.");
  EXPECT_EQ(
      Between(t, [](auto& s) { s.tensors[0].dtype = DType::kBfloat16; }),
      "allreduce 'grad.3': rank 0 submitted dtype float32, rank 2 submitted dtype bfloat16. Submit the same dtype "
      "on all ranks.");
  EXPECT_EQ(Between(t, [](auto& s) { s.op = wire::Op::kBroadcast; }),
            "'grad.3': rank 0 submitted operation allreduce, rank 2 submitted operation broadcast. Submit the same "
            "operation on all ranks.");
  EXPECT_EQ(
      Between(t, [](auto& s) { s.reduce_op = wire::ReduceOp::kMin; }),
      "allreduce 'grad.3': rank 0 submitted reduce op sum, rank 2 submitted reduce op min. Submit the same reduce "
      "op on all ranks.");
  EXPECT_EQ(Between(OfOp(wire::Op::kBroadcast, "b", 0), [](auto& s) { s.root = 1; }),
            "broadcast 'b': rank 0 submitted root 0, rank 2 submitted root 1. Submit the same root on all ranks.");
  EXPECT_EQ(
      Between(t, [](auto& s) { s.priority = -7; }),
      "allreduce 'grad.3': rank 0 submitted priority 0, rank 2 submitted priority -7. Submit the same priority on "
      "all ranks.");
  EXPECT_EQ(Between(t, [](auto& s) { s.prescale = 0.1; }),
            "allreduce 'grad.3': rank 0 submitted prescale factor 1, rank 2 submitted prescale factor 0.1. Submit the "
            "same prescale factor on all ranks.");
  EXPECT_EQ(
      Between(t, [](auto& s) { s.postscale = -2.5; }),
      "allreduce 'grad.3': rank 0 submitted postscale factor 1, rank 2 submitted postscale factor -2.5. Submit the "
      "same postscale factor on all ranks.");
  EXPECT_EQ(
      Between(t, [](auto& s) { s.device_class = wire::DeviceClass::kCuda; }),
      "allreduce 'grad.3': rank 0 submitted device class cpu, rank 2 submitted device class cuda. Submit the same "
      "device class on all ranks.");
  EXPECT_EQ(Between(t, [](auto& s) { s.layers = "compression=fp16"; }),
            "allreduce 'grad.3': rank 0 submitted list of layers '', rank 2 submitted list of layers "
            "'compression=fp16'. Submit the same list of layers on all ranks.");
  EXPECT_EQ(
      Between(t, [](auto& s) { s.backend = "mpi"; }),
      "allreduce 'grad.3': rank 0 submitted backend '', rank 2 submitted backend 'mpi'. Submit the same backend on "
      "all ranks.");
}

TEST(Mismatch, TheRanksOfProposedProcessSetsAreNamed) {
  wire::Signature add = OfOp(wire::Op::kRegister, "process_set.1.add");
  add.tensors = {{"process_set.1.add", DType::kInt64, {0, 3}}};
  EXPECT_EQ(
      Between(add, [](auto& s) { s.tensors[0].shape = {0, 2, 3}; }),
      "register 'process_set.1.add': rank 0 submitted the ranks [0, 3], rank 2 submitted the ranks [0, 2, 3]. Add "
      "the same process sets on all ranks of the job, in the same order.");
  EXPECT_EQ(Between(add, [](auto&) {}), "");
}

TEST(Mismatch, RanksAndRootsOfAProcessSetAreNamedAsInTheJob) {
  const wire::Signature a = OfOp(wire::Op::kBroadcast, "b", 0);
  const wire::Signature b = OfOp(wire::Op::kBroadcast, "b", 1);
  EXPECT_EQ(Difference(a, 0, b, 2, RankNames(4, {2, 5, 7})),
            "broadcast 'b' of process set 4: rank 2 submitted root 2, rank 7 submitted root 5. Submit the same root on "
            "all ranks.");
}

TEST(Mismatch, GroupsMustHaveTheSameMembersInTheSameOrder) {
  const wire::Signature group = Group("g", {"a", "b"});
  EXPECT_EQ(
      Between(group, [](auto& s) { s.tensors.pop_back(); }),
      "allreduce 'g': rank 0 submitted 2 tensors, rank 2 submitted 1 tensor. Rank 2's group lacks 'b'. A group must "
      "have the same members, in the same order, on all ranks.");
  EXPECT_EQ(Between(group, [](auto& s) { s.tensors[1].name = "c"; }),
            "allreduce 'g': rank 0 submitted as member 1 'b', rank 2 submitted as member 1 'c'. Rank 2's group lacks "
            "'b'. Rank 0's group lacks 'c'. A group must have the same members, in the same order, on all ranks.");
  const std::string of_positions = Between(Group("g", {"g_1of2", "g_2of2"}), [](auto& s) {
    s.tensors.pop_back();
    s.tensors[0].name = "g_1of1";
  });
  EXPECT_EQ(of_positions.find("lacks"), std::string::npos) << of_positions;
  EXPECT_EQ(
      Between(group, [](auto& s) { s.tensors[1].shape = {5}; }),
      "allreduce 'g', tensor 'b': rank 0 submitted shape [4], rank 2 submitted shape [5]. Submit the same shape on "
      "all ranks.");
}

TEST(Mismatch, OnlyTheFirstDimensionOfRowsMayDiffer) {
  wire::Signature gather = OfOp(wire::Op::kAllgather, "x");
  gather.tensors[0].shape = {-1, 3};
  EXPECT_EQ(Between(gather, [](auto& s) { s.tensors[0].shape = {-1, 4}; }),
            "allgather 'x': rank 0 submitted shape [*, 3], rank 2 submitted shape [*, 4]. Only the first dimension may "
            "differ between ranks (*).");
}

TEST(Mismatch, EqualSignaturesHaveNoDifference) {
  EXPECT_EQ(Between(Group("g", {"a", "b"}), [](auto&) {}), "");
}

TEST(Mismatch, NamesFromUsersAreEscaped) {
  const std::string text = Between(Tensor("a\n\"\xff"), [](auto& s) { s.tensors[0].shape = {1}; });
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  EXPECT_EQ(text.find('\xff'), std::string::npos) << text;
}

// ---- through a whole job

void ExpectFailsEverywhere(TestJob& job, const std::vector<OpId>& ops, StatusCode code, const std::string& part) {
  for (int rank = 0; rank < job.size(); ++rank) {
    const Outcome& outcome = job.Of(rank, ops[static_cast<size_t>(rank)]);
    EXPECT_EQ(outcome.failures, 1) << "rank " << rank;
    EXPECT_EQ(outcome.status.code(), code) << outcome.status.ToString();
    EXPECT_NE(outcome.status.message().find(part), std::string::npos) << outcome.status.message();
  }
}

TEST(Mismatch, FailsTheOperationOnAllRanksAndTheJobGoesOn) {
  TestJob job(3);
  std::vector<OpId> ops;
  for (int rank = 0; rank < 3; ++rank) ops.push_back(job.Submit(rank, Tensor("x", {rank == 2 ? 5 : 4})));
  const auto fine = job.SubmitAll(Tensor("y"));
  job.WaitAll();
  job.Settle();
  ExpectFailsEverywhere(job, ops, StatusCode::kMismatch, "rank 0 submitted shape [4], rank 2 submitted shape [5]");
  EXPECT_TRUE(job.Done(fine));
  const auto again = job.SubmitAll(Tensor("x"));
  job.Settle();
  EXPECT_TRUE(job.Done(again));
}

TEST(Mismatch, OnlyTheFirstDifferenceIsReported) {
  TestJob job(3);
  std::vector<OpId> ops;
  ops.push_back(job.Submit(0, Tensor("x", {1})));
  ops.push_back(job.Submit(1, Tensor("x", {2})));
  ops.push_back(job.Submit(2, Tensor("x", {3}, DType::kInt8)));
  job.WaitAll();
  job.Settle();
  ExpectFailsEverywhere(job, ops, StatusCode::kMismatch, "rank 1 submitted shape [2]");
}

TEST(Mismatch, AChangedRequestIsRenegotiatedOnce) {
  TestJob job(3);
  job.WaitAll();
  for (int64_t size : {4, 4, 7, 7, 7}) {
    const auto ops = job.SubmitAll(Tensor("x", {size}));
    job.Settle();
    EXPECT_TRUE(job.Done(ops));
  }
  EXPECT_EQ(job[0].counters().slow_rounds, 2u);
  EXPECT_EQ(job[1].counters().changed, 1u);
  EXPECT_EQ(job[0].cache_size(), 1);
}

TEST(Mismatch, ADisagreementAboutACachedOperationIsFoundWithinTwoRounds) {
  TestJob job(3);
  job.WaitAll();
  job.SubmitAll(Tensor("x"));
  job.Settle();
  const uint64_t rounds = job[0].counters().rounds;
  // Ranks 0 and 1 hit the cache; rank 2 submits another shape.
  std::vector<OpId> ops = {job.Submit(0, Tensor("x")), job.Submit(1, Tensor("x")), kNoOp};
  job.Settle();
  ops[2] = job.Submit(2, Tensor("x", {9}));
  job.Settle();
  ExpectFailsEverywhere(job, ops, StatusCode::kMismatch, "[4]");
  ExpectFailsEverywhere(job, ops, StatusCode::kMismatch, "[9]");
  EXPECT_LE(job[0].counters().rounds, rounds + 2);
  job.ExpectEqualCaches();
}

TEST(Mismatch, ARequestThatLostItsCacheEntryIsSentAgainWithoutAWait) {
  TestJob job(2);
  job.SubmitAll(Tensor("x"));
  job.RunFor(5 * kMs);
  const OpId zero = job.Submit(0, Tensor("x"));
  job.RunFor(5 * kMs);
  const OpId one = job.Submit(1, Tensor("x", {9}));
  job.RunFor(5 * kMs);
  ExpectFailsEverywhere(job, {zero, one}, StatusCode::kMismatch, "shape [9]");
}

TEST(Mismatch, ResponsesHaveTheOrderOfTheirFirstRequests) {
  TestJob job(2);
  for (const char* name : {"z", "a", "m", "b"}) job.Submit(0, Tensor(name));
  job.RunFor(5 * kMs);
  for (const char* name : {"b", "a", "z", "m"}) job.Submit(1, Tensor(name));
  job.RunFor(5 * kMs);
  std::string order;
  for (const Plan& plan : job.plans[1]) {
    for (const PlanItem& item : plan.items) order += item.signature->name;
  }
  EXPECT_EQ(order, "zamb");
}

TEST(Mismatch, ACachedNameIsADuplicateWhileItIsPendingUncached) {
  TestJob job(2);
  job.SubmitAll(Tensor("a"));
  job.RunFor(5 * kMs);
  const OpId changed = job.Submit(0, Tensor("a", {9}));
  EXPECT_EQ(job.Of(0, job.Submit(0, Tensor("a"))).status.code(), StatusCode::kDuplicateName);
  const OpId theirs = job.Submit(1, Tensor("a", {9}));
  job.RunFor(5 * kMs);
  EXPECT_TRUE(job.Done({changed, theirs}));
  job.Submit(0, Group("g", {"b", "a"}));
  EXPECT_EQ(job.Of(0, job.Submit(0, Tensor("a", {9}))).status.code(), StatusCode::kDuplicateName);
}

TEST(Mismatch, ADuplicateNameFailsOnThisRankOnly) {
  TestJob job(2);
  for (const bool cached : {false, true}) {
    const OpId first = job.Submit(0, Tensor("x"));
    const OpId second = job.Submit(0, Tensor("x"));
    const OpId other = job.Submit(0, Group("g", {"y", "x"}));
    EXPECT_EQ(job.Of(0, second).status.code(), StatusCode::kDuplicateName) << cached;
    EXPECT_EQ(job.Of(0, other).status.code(), StatusCode::kDuplicateName) << cached;
    const OpId theirs = job.Submit(1, Tensor("x"));
    job.WaitAll();
    job.Settle();
    EXPECT_EQ(job.Of(0, first).plans, 1);
    EXPECT_EQ(job.Of(1, theirs).plans, 1);
  }
}

TEST(Mismatch, AMemberOfACachedGroupThatIsPendingIsADuplicate) {
  TestJob job(2);
  job.WaitAll();
  job.SubmitAll(Group("g", {"a", "b"}));
  job.Settle();
  job.SubmitAll(Tensor("a"));
  job.Settle();
  const OpId group = job.Submit(0, Group("g", {"a", "b"}));  // both are cached now
  EXPECT_EQ(job.Of(0, job.Submit(0, Tensor("a"))).status.code(), StatusCode::kDuplicateName);
  EXPECT_EQ(job.Of(0, job.Submit(0, Tensor("b"))).status.code(), StatusCode::kDuplicateName);
  job.Submit(1, Group("g", {"a", "b"}));
  job.Settle();
  EXPECT_EQ(job.Of(0, group).plans, 1);
}

TEST(Mismatch, ImpossibleRequestsFailAtSubmission) {
  TestJob job(2);
  const auto code = [&](const wire::Signature& signature) { return job.Of(0, job.Submit(0, signature)).status.code(); };
  EXPECT_EQ(code(Tensor("")), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Tensor(std::string(4097, 'x'))), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Tensor("x", {-2})), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Tensor("x", {int64_t{1} << 62, 4})), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(OfOp(wire::Op::kBroadcast, "x", 2)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(OfOp(wire::Op::kBroadcast, "x", -1)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(OfOp(wire::Op::kSend, "x")), StatusCode::kInvalidArgument);
  wire::Signature scaled = Tensor("x");
  scaled.prescale = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(code(scaled), StatusCode::kInvalidArgument);
  EXPECT_FALSE(job[0].HasPending());
}

TEST(Mismatch, AnOperationWithoutABackendIsUnsupportedOnAllRanks) {
  ControllerConfig config;
  BackendTraits cpu_only{"shm", ~0u, 1, 1, 99, {}};
  config.selector = Selector::Parse({cpu_only}, {2}, "").value();
  TestJob job(2, config);
  wire::Signature cuda = Tensor("x");
  cuda.device_class = wire::DeviceClass::kCuda;
  const auto ops = job.SubmitAll(cuda);
  job.WaitAll();
  job.Settle();
  ExpectFailsEverywhere(job, ops, StatusCode::kUnsupported, "Backends here: shm");
}

}  // namespace
}  // namespace horocache::control
