// Operations whose data travels with the round, without another exchange: see Note [Inline allreduces] in controller.h.
#include <gtest/gtest.h>

#include <numeric>

#include "control/signature.h"
#include "control/test_network.h"

namespace horocache::control {
namespace {

// Two backends: "shm", with a second algorithm "other", and "mpi", whose sums are not plain folds.
Selector ShmSelector(int world) {
  BackendTraits shm{.name = "shm", .ops = ~0u, .device_classes = ~0u, .algorithms = {"auto", "other"}};
  shm.plain_fold = true;
  BackendTraits mpi{.name = "mpi", .ops = ~0u, .device_classes = ~0u};
  return Selector::Parse({shm, mpi}, {world}, "").value();
}

ControllerConfig InlineConfig(int size) {
  ControllerConfig config;
  config.selector = ShmSelector(size);
  return config;
}

// One rank's data as 64-bit words, all different.
std::vector<uint64_t> Data(int rank, size_t words, uint64_t salt = 0) {
  std::vector<uint64_t> data(words);
  std::iota(data.begin(), data.end(), 1000 * static_cast<uint64_t>(rank + 1) + 100'000 * salt);
  return data;
}

// Submits with `words` words of data, or with the exact bytes of the tensors if these take `words` words.
OpId SubmitData(TestJob& job, int rank, const wire::Signature& signature, size_t words, uint64_t salt = 0) {
  const std::vector<uint64_t> data = Data(rank, words, salt);
  const auto bytes = static_cast<size_t>(SignatureBytes(signature));
  return job.Submit(rank, signature,
                    std::as_bytes(std::span(data)).first((bytes + 7) / 8 == words ? bytes : 8 * words));
}

// All ranks submit the operations with data and wait for them.
void RunStep(TestJob& job, const std::vector<wire::Signature>& signatures, const std::vector<size_t>& words,
             uint64_t salt = 0) {
  std::vector<std::vector<OpId>> ops(signatures.size());
  for (size_t i = 0; i < signatures.size(); ++i) {
    for (int rank = 0; rank < job.size(); ++rank)
      ops[i].push_back(SubmitData(job, rank, signatures[i], words[i], salt));
  }
  job.WaitAll();
  job.Settle();
  for (const auto& op : ops) EXPECT_TRUE(job.Done(op));
  for (int rank = 0; rank < job.size(); ++rank) job.StopWaiting(rank);
  job.Settle();
  job.ExpectEqualCaches();
}
void RunStep(TestJob& job, const wire::Signature& signature, size_t words, uint64_t salt = 0) {
  RunStep(job, std::vector{signature}, {words}, salt);
}

std::vector<std::string> NamesIn(const Plan& plan) {
  std::vector<std::string> names;
  for (const PlanItem& item : plan.items) names.push_back(item.signature->name);
  return names;
}

// Expects equal plans with equal inline data on all ranks.
void ExpectEqualPlans(TestJob& job) {
  for (int rank = 1; rank < job.size(); ++rank) {
    const auto& mine = job.plans[static_cast<size_t>(rank)];
    ASSERT_EQ(mine.size(), job.plans[0].size());
    for (size_t i = 0; i < mine.size(); ++i) {
      EXPECT_EQ(NamesIn(mine[i]), NamesIn(job.plans[0][i])) << "plan " << i << " of rank " << rank;
      EXPECT_EQ(mine[i].contributions, job.plans[0][i].contributions) << "plan " << i << " of rank " << rank;
      EXPECT_EQ(mine[i].sequence, i);
    }
  }
}

int CountInline(const TestJob& job) {
  return static_cast<int>(std::ranges::count_if(job.plans[0], [](const Plan& plan) { return plan.is_inline(); }));
}

class InlineAllreduceOfRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, InlineAllreduceOfRanks, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(InlineAllreduceOfRanks, CachedSmallAllreducesHaveTheDataOfAllRanksInRankOrder) {
  TestJob job(GetParam(), InlineConfig(GetParam()));
  for (uint64_t step = 0; step < 5; ++step) RunStep(job, Tensor("a", {5}), 3, step);
  ASSERT_EQ(job.plans[0].size(), 5u);
  EXPECT_FALSE(job.plans[0][0].is_inline()) << "it was negotiated";
  for (uint64_t step = 1; step < 5; ++step) {
    std::vector<uint64_t> all;
    for (int rank = 0; rank < job.size(); ++rank) {
      std::vector<uint64_t> data = Data(rank, 3, step);
      data[2] &= 0xffffffff;  // 20 bytes: the rest of the last word is zero
      all.insert(all.end(), data.begin(), data.end());
    }
    EXPECT_EQ(job.plans[0][step].contributions, all);
    EXPECT_EQ(job.plans[0][step].divisor_ranks, job.size());
  }
  ExpectEqualPlans(job);
  EXPECT_EQ(job[0].counters().rounds, 5u);
}

// A tensor of 20 bytes.
wire::Signature Small(const std::string& name) { return Tensor(name, {5}); }

TEST(InlineAllreduce, AGroupIsOnePlanAndTheRestOfTheRoundIsFused) {
  TestJob job(3, InlineConfig(3));
  const std::vector<wire::Signature> signatures = {Tensor("big", {100}), Group("group", {"g.1", "g.2", "g.3"}),
                                                   Tensor("large", {200}), Small("small")};
  for (int step = 0; step < 2; ++step) RunStep(job, signatures, {0, 6, 0, 3});
  ExpectEqualPlans(job);
  ASSERT_EQ(job.plans[0].size(), 4u);
  EXPECT_EQ(NamesIn(job.plans[0][0]).size(), 4u);
  EXPECT_EQ(NamesIn(job.plans[0][1]), std::vector<std::string>{"group"});
  EXPECT_EQ(job.plans[0][1].contributions.size(), 18u);
  EXPECT_EQ(job.plans[0][1].items[0].num_tensors, 3);
  EXPECT_EQ(NamesIn(job.plans[0][2]), std::vector<std::string>{"small"});
  EXPECT_EQ(NamesIn(job.plans[0][3]), (std::vector<std::string>{"big", "large"}));
  EXPECT_FALSE(job.plans[0][3].is_inline());
}

TEST(InlineAllreduce, OperationsBeyondThePayloadRunInALane) {
  TestJob job(2, InlineConfig(2));
  std::vector<wire::Signature> signatures;
  for (int i = 0; i < 11; ++i) signatures.push_back(Tensor("t." + std::to_string(i), {16}));
  const std::vector<size_t> words(signatures.size(), 8);
  for (uint64_t step = 0; step < 3; ++step) RunStep(job, signatures, words, step);
  ExpectEqualPlans(job);
  EXPECT_EQ(CountInline(job), 2 * 8);  // 8 times 8 words
  EXPECT_EQ(job.plans[0].back().items.size(), 3u);
}

TEST(InlineAllreduce, AnOperationBeyondThePayloadOfOneRankIsInlineOnNoRank) {
  TestJob job(2, InlineConfig(2));
  std::vector<wire::Signature> signatures;
  for (int i = 0; i < 9; ++i) signatures.push_back(Tensor("t." + std::to_string(i), {16}));
  RunStep(job, signatures, std::vector<size_t>(9, 8));
  // On rank 0, the first eight are pending, too, so that the ninth does not fit into the payload. On rank 1 it does.
  for (size_t i = 0; i < 8; ++i) SubmitData(job, 0, signatures[i], 8);
  std::vector<OpId> last = {SubmitData(job, 0, signatures[8], 8), SubmitData(job, 1, signatures[8], 8)};
  job.WaitAll();
  job.Settle();
  EXPECT_TRUE(job.Done(last));
  ExpectEqualPlans(job);
  EXPECT_EQ(CountInline(job), 0);
  // The first eight are inline as soon as rank 1 submits them.
  for (size_t i = 0; i < 8; ++i) SubmitData(job, 1, signatures[i], 8);
  job.Wait(1);
  job.Settle();
  ExpectEqualPlans(job);
  EXPECT_EQ(CountInline(job), 8);
}

TEST(InlineAllreduce, DataIsFoundBehindTheDataOfOperationsPendingOnOneRank) {
  TestJob job(2, InlineConfig(2));
  const std::vector<wire::Signature> signatures = {Tensor("a", {2}), Tensor("b", {4}), Tensor("c", {6})};
  RunStep(job, signatures, {1, 2, 3});
  SubmitData(job, 0, signatures[0], 1, 7);
  SubmitData(job, 1, signatures[1], 2, 7);
  const std::vector<OpId> ops = {SubmitData(job, 0, signatures[2], 3, 8), SubmitData(job, 1, signatures[2], 3, 9)};
  job.WaitAll();
  job.Settle();
  EXPECT_TRUE(job.Done(ops));
  ExpectEqualPlans(job);
  std::vector<uint64_t> all = Data(0, 3, 8);
  const std::vector<uint64_t> theirs = Data(1, 3, 9);
  all.insert(all.end(), theirs.begin(), theirs.end());
  EXPECT_EQ(job.plans[0].back().contributions, all);
}

TEST(InlineAllreduce, WithoutTheDataOfOneRankLaterOperationsAreNotInline) {
  TestJob job(3, InlineConfig(3));
  const std::vector<wire::Signature> signatures = {Small("a"), Small("b"), Small("c")};
  RunStep(job, signatures, {3, 3, 3});
  for (int rank = 0; rank < 3; ++rank) {
    for (size_t i = 0; i < 3; ++i) {
      // Rank 1 submits b with 16 bytes of data instead of 20, which does not count as data.
      const bool without = rank == 1 && i == 1;
      SubmitData(job, rank, signatures[i], without ? 2 : 3);
    }
  }
  job.WaitAll();
  job.Settle();
  ExpectEqualPlans(job);
  ASSERT_EQ(job.plans[0].size(), 3u);
  EXPECT_EQ(CountInline(job), 1);
  EXPECT_EQ(NamesIn(job.plans[0][2]), (std::vector<std::string>{"b", "c"}));
}

TEST(InlineAllreduce, DataIsCopiedWhenItIsSubmitted) {
  TestJob job(2, InlineConfig(2));
  RunStep(job, Tensor("a", {2}), 1);
  uint64_t value = 5;
  for (int rank = 0; rank < 2; ++rank) job.Submit(rank, Tensor("a", {2}), std::as_bytes(std::span(&value, 1)));
  value = 6;
  job.WaitAll();
  job.Settle();
  EXPECT_EQ(job.plans[0].back().contributions, (std::vector<uint64_t>{5, 5}));
}

TEST(InlineAllreduce, OnlyShortPlainAllreducesAreInline) {
  const auto with = [](auto change) {
    wire::Signature signature = Small("x");
    change(signature);
    return signature;
  };
  const std::vector<wire::Signature> others = {
      Tensor("x", {17}),  // 68 bytes
      Tensor("x", {0}),
      OfOp(wire::Op::kBroadcast, "x", 0),
      OfOp(wire::Op::kReduce, "x", 0),
      OfOp(wire::Op::kAllgather, "x"),
      OfOp(wire::Op::kBarrier, "x"),
      with([](wire::Signature& s) { s.device_class = wire::DeviceClass::kFake; }),
      with([](wire::Signature& s) { s.backend = "shm/other"; }),
      with([](wire::Signature& s) { s.backend = "mpi"; }),
      with([](wire::Signature& s) { s.tensors.push_back({"y", DType::kInt32, {1}}); }),
  };
  for (const wire::Signature& signature : others) {
    TestJob job(2, InlineConfig(2));
    for (int step = 0; step < 3; ++step) RunStep(job, signature, 3);
    EXPECT_EQ(CountInline(job), 0) << wire::OpName(signature.op) << " by " << signature.backend;
  }
  for (const char* backend : {"", "shm", "shm/auto"}) {
    TestJob job(2, InlineConfig(2));
    for (int step = 0; step < 3; ++step) RunStep(job, with([&](wire::Signature& s) { s.backend = backend; }), 3);
    EXPECT_EQ(CountInline(job), 2) << backend;
  }
}

TEST(InlineAllreduce, TheLimitCountsTheBytesOfAllTensorsAndZeroIsOff) {
  for (const int64_t limit : {0, 19, 20, 48, 64, 1000}) {
    ControllerConfig config = InlineConfig(2);
    config.inline_max_bytes = limit;
    TestJob job(2, config);
    for (int step = 0; step < 2; ++step) {
      RunStep(job, Small("a"), 3);
      RunStep(job, Group("g", {"1", "2", "3"}), 6);
      RunStep(job, Tensor("b", {17}), 9);
    }
    EXPECT_EQ(CountInline(job), (limit >= 20 ? 1 : 0) + (limit >= 48 ? 1 : 0)) << limit;
  }
}

TEST(InlineAllreduce, NoOperationIsInlineWhileARankHasJoined) {
  TestJob job(3, InlineConfig(3));
  RunStep(job, Small("a"), 3);
  const OpId join = job.Submit(2, OfOp(wire::Op::kJoin, "join"));
  job.Wait(2);
  job.Settle();
  for (int step = 0; step < 3; ++step) {
    for (int rank = 0; rank < 2; ++rank) SubmitData(job, rank, Small("a"), 3);
    job.Wait(0);
    job.Wait(1);
    job.Settle();
  }
  EXPECT_EQ(CountInline(job), 0);
  ASSERT_EQ(job.plans[0].size(), 4u);
  EXPECT_EQ(job.plans[0].back().joined, std::vector<int32_t>{2});
  for (int rank = 0; rank < 2; ++rank) job.Submit(rank, OfOp(wire::Op::kJoin, "join"));
  job.WaitAll();
  job.Settle();
  EXPECT_EQ(job.Of(2, join).plans, 1);
  RunStep(job, Small("a"), 3);
  EXPECT_EQ(CountInline(job), 1) << "no rank has joined any more";
  ExpectEqualPlans(job);
}

TEST(InlineAllreduce, AChangedRequestIsNegotiatedAndThenInline) {
  TestJob job(2, InlineConfig(2));
  for (const int64_t length : {5, 5, 9, 9, 100, 100, 5, 5})
    RunStep(job, Tensor("a", {length}), static_cast<size_t>(length + 1) / 2);
  ExpectEqualPlans(job);
  std::vector<size_t> sizes;
  for (const Plan& plan : job.plans[0]) sizes.push_back(plan.contributions.size());
  EXPECT_EQ(sizes, (std::vector<size_t>{0, 6, 0, 10, 0, 0, 0, 6}));
}

TEST(InlineAllreduce, AnOperationEvictedWhilePendingRunsInALane) {
  ControllerConfig config = InlineConfig(2);
  config.cache_capacity = 2;
  config.cache_capacity_fixed = true;
  TestJob job(2, config);
  RunStep(job, {Small("a"), Small("b")}, {3, 3});
  const OpId early = SubmitData(job, 0, Small("a"), 3);
  for (int i = 0; i < 4; ++i) RunStep(job, Small("new." + std::to_string(i)), 3);
  EXPECT_FALSE(job.Of(0, early).done());
  const OpId late = SubmitData(job, 1, Small("a"), 3);
  job.WaitAll();
  job.Settle();
  EXPECT_EQ(job.Of(0, early).plans + job.Of(1, late).plans, 2);
  ExpectEqualPlans(job);
  EXPECT_EQ(CountInline(job), 0);
  RunStep(job, Small("a"), 3);
  EXPECT_EQ(CountInline(job), 1);
}

TEST(InlineAllreduce, WorksInTickMode) {
  ControllerConfig config = InlineConfig(3);
  config.tick = true;
  TestJob job(3, config);
  for (int step = 0; step < 3; ++step) {
    for (int rank = 0; rank < 3; ++rank) SubmitData(job, rank, Small("a"), 3);
    job.RunFor(5 * kMs);
  }
  EXPECT_EQ(CountInline(job), 2);
  ExpectEqualPlans(job);
}

TEST(InlineAllreduce, NoOperationIsInlineIfRanksDoNotReadAllSnapshots) {
  for (const char* strategy : {"leaders", "coordinator", "tree"}) {
    TestJob job(4, InlineConfig(4), {.strategy = strategy});
    for (int step = 0; step < 3; ++step) RunStep(job, Small("a"), 3);
    EXPECT_EQ(CountInline(job), 0) << strategy;
  }
  TestJob job(4, InlineConfig(4));
  job.hub.shares_words = false;
  for (int step = 0; step < 3; ++step) RunStep(job, Small("a"), 3);
  EXPECT_EQ(CountInline(job), 0);
  for (const auto& payloads : job.hub.payloads) EXPECT_TRUE(payloads.rbegin()->second.empty());
}

TEST(InlineAllreduce, OperationsBeyondATruncatedPayloadRunInALane) {
  Controller controller([] {
    ControllerConfig config = InlineConfig(1);
    return config;
  }());
  TestHub hub(1);
  TestChannel channel(&hub, 0);
  const auto agreement = MakeAgreement({});
  wire::Request requests[2];
  requests[0].signature = Tensor("a", {4});
  requests[1].signature = Tensor("b", {4});
  const std::vector<uint64_t> data = {1, 2};
  const auto submit = [&] {
    for (OpId op = 1; op <= 2; ++op)
      ASSERT_TRUE(controller.Submit(op, requests[op - 1], 1, std::as_bytes(std::span(data))).ok());
  };
  Plan plan;
  submit();
  controller.SetWaiting(true, true);
  while (agreement->Step(controller, channel, 1).value()) {
  }
  while (controller.NextPlan(&plan)) {
  }
  for (const size_t length : {0, 1, 2, 3, 4, 64}) {
    submit();
    Snapshot snapshot;
    controller.Freeze(&snapshot.words);
    controller.WritePayload(&snapshot.payload);
    ASSERT_EQ(snapshot.payload, (std::vector<uint64_t>{1, 2, 1, 2}));
    EXPECT_TRUE(controller.MayRunInline(snapshot.words));
    snapshot.payload.resize(length);
    controller.ApplyAnd(snapshot.words, std::span(&snapshot, 1));
    ASSERT_TRUE(controller.Finish(nullptr).ok());
    size_t inline_plans = 0, items = 0;
    for (; controller.NextPlan(&plan); items += plan.items.size()) inline_plans += plan.is_inline() ? 1 : 0;
    EXPECT_EQ(inline_plans, std::min<size_t>(length / 2, 2)) << length;
    EXPECT_EQ(items, 2u);
  }
}

}  // namespace
}  // namespace horocache::control
