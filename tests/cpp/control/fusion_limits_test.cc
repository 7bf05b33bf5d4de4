// The limits of fusion, B bytes (fusion_threshold) and T milliseconds (cycle_time), on all ranks: M14 and M15. Time is
// simulated. Each test runs twice, the second time by the response cache.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "control/signature.h"
#include "control/test_network.h"

namespace horocache::control {
namespace {

constexpr int64_t kB = 64 << 10;
constexpr int64_t kT = 5 * kMs;
constexpr int64_t kKib = 256;  // elements of 4 bytes

class FusionLimits : public ::testing::TestWithParam<std::string> {
 protected:
  static TestJob Make(int64_t bytes) {
    const BackendTraits first{.name = "first", .ops = ~0u, .device_classes = ~0u};
    const BackendTraits second{.name = "second", .ops = ~0u, .device_classes = ~0u};
    ControllerConfig config;
    config.cycle_time_ns = kT;
    config.fusion_threshold_bytes = bytes;
    config.selector = Selector::Parse({first, second}, {kRanks}, "").value();
    AgreementConfig agreement{.strategy = GetParam(), .radix = 2};
    if (agreement.strategy == "leaders") agreement.host_of = {0, 0, 1};
    return TestJob(kRanks, config, agreement);
  }

  // The plans of rank 0 since the last call; those of the other ranks must be the same.
  static std::vector<Plan> TakePlans(TestJob* job) {
    std::vector<Plan> plans = std::move(job->plans[0]);
    for (size_t rank = 0; rank < job->plans.size(); ++rank) {
      const std::vector<Plan>& others = rank == 0 ? plans : job->plans[rank];
      EXPECT_EQ(others.size(), plans.size()) << "rank " << rank;
      for (size_t i = 0; i < std::min(others.size(), plans.size()); ++i) {
        EXPECT_EQ(NamesOf(others[i]), NamesOf(plans[i])) << "rank " << rank;
      }
      job->plans[rank].clear();
    }
    return plans;
  }
  static std::vector<std::string> NamesOf(const Plan& plan) {
    std::vector<std::string> names;
    for (const PlanItem& item : plan.items) names.push_back(item.signature->name);
    return names;
  }
  static int64_t BytesOf(const Plan& plan) {
    int64_t bytes = 0;
    for (const PlanItem& item : plan.items) bytes += SignatureBytes(*item.signature);
    return bytes;
  }
  static bool AllDone(TestJob* job, const std::vector<std::vector<OpId>>& operations) {
    return std::ranges::all_of(operations, [&](const auto& ops) { return job->Done(ops); });
  }
  // Submits 100 tensors of 1 KiB one by one.
  static std::vector<std::vector<OpId>> SubmitHundred(TestJob* job) {
    std::vector<std::vector<OpId>> operations;
    for (int i = 0; i < 100; ++i) {
      operations.push_back(job->SubmitAll(Tensor("t" + std::to_string(i), {kKib})));
      job->Settle();
    }
    return operations;
  }

  static constexpr int kRanks = 3;
};

TEST_P(FusionLimits, M14AHundredSmallTensorsTakeAsManyOperationsAsFillB) {
  TestJob job = Make(kB);
  for (int turn = 0; turn < 2; ++turn) {
    const auto operations = SubmitHundred(&job);
    EXPECT_EQ(job.Done(operations[63]), true) << "64 KiB are full";
    EXPECT_EQ(job.Done(operations[64]), false) << "the rest lingers";
    job.RunFor(kT);
    EXPECT_TRUE(AllDone(&job, operations)) << "T has passed";
    const std::vector<Plan> plans = TakePlans(&job);
    EXPECT_EQ(plans.size(), 2u) << "at most ceil(100 / 64) + 1 are allowed";
    for (const Plan& plan : plans) EXPECT_LE(BytesOf(plan), kB);
  }
}

TEST_P(FusionLimits, M14NothingFusesWithoutB) {
  TestJob job = Make(0);
  for (int turn = 0; turn < 2; ++turn) {
    const auto operations = SubmitHundred(&job);
    job.RunFor(kT);
    EXPECT_TRUE(AllDone(&job, operations));
    EXPECT_EQ(TakePlans(&job).size(), 100u);
  }
}

TEST_P(FusionLimits, M14ASingleSmallTensorTakesT) {
  TestJob job = Make(kB);
  for (int turn = 0; turn < 2; ++turn) {
    const auto ops = job.SubmitAll(Tensor("a", {kKib}));
    job.RunFor(kT - kMs);
    EXPECT_FALSE(job.Done(ops));
    job.RunFor(kMs);
    EXPECT_TRUE(job.Done(ops));
  }
}

TEST_P(FusionLimits, M14TypesReductionsAndBackendsDoNotShareABuffer) {
  TestJob job = Make(kB);
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<std::vector<OpId>> operations;
    for (int i = 0; i < 48; ++i) {
      wire::Signature one = Tensor("t" + std::to_string(i), {16}, i % 2 == 0 ? DType::kFloat32 : DType::kInt32);
      one.reduce_op = i / 2 % 2 == 0 ? wire::ReduceOp::kSum : wire::ReduceOp::kMax;
      one.backend = i / 4 % 2 == 0 ? "first" : "second";
      if (i / 8 % 2 == 1) one.op = wire::Op::kReduce, one.root = i / 16 % 2;
      operations.push_back(job.SubmitAll(one));
    }
    job.RunFor(kT);
    EXPECT_TRUE(AllDone(&job, operations));
    const std::vector<Plan> plans = TakePlans(&job);
    EXPECT_EQ(plans.size(), 24u) << "2 types, 2 reductions, 2 backends; allreduce, and reduce to 2 roots";
    for (const Plan& plan : plans) {
      const wire::Signature& first = *plan.items[0].signature;
      for (const PlanItem& item : plan.items) {
        const wire::Signature& one = *item.signature;
        EXPECT_EQ(one.tensors[0].dtype, first.tensors[0].dtype);
        EXPECT_EQ(std::tuple(one.op, one.reduce_op, one.root), std::tuple(first.op, first.reduce_op, first.root));
        EXPECT_EQ(one.backend, first.backend);
      }
    }
  }
}

TEST_P(FusionLimits, M14ATensorLargerThanBGoesAlone) {
  TestJob job = Make(kB);
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<std::vector<OpId>> operations = {job.SubmitAll(Tensor("a", {kKib}))};
    operations.push_back(job.SubmitAll(Tensor("large", {65 * kKib})));
    operations.push_back(job.SubmitAll(Tensor("b", {kKib})));
    job.RunFor(kT);
    EXPECT_TRUE(AllDone(&job, operations));
    std::set<std::vector<std::string>> together;
    for (const Plan& plan : TakePlans(&job)) together.insert(NamesOf(plan));
    EXPECT_TRUE(together.contains({"large"}));
  }
}

TEST_P(FusionLimits, PriorityOrdersWhatFillsSeveralOperations) {
  TestJob job = Make(2 * kKib * 4);
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<std::vector<OpId>> operations;
    for (const auto& [name, priority] : {std::pair{"a", 1}, {"b", 4}, {"c", 3}, {"d", 5}, {"e", 2}}) {
      wire::Signature one = Tensor(name, {kKib});
      one.priority = priority;
      operations.push_back(job.SubmitAll(one));  // all ranks have submitted all before one of them is stepped
    }
    job.RunFor(kT);
    EXPECT_TRUE(AllDone(&job, operations));
    std::vector<std::vector<std::string>> names;
    for (const Plan& plan : TakePlans(&job)) names.push_back(NamesOf(plan));
    EXPECT_EQ(names, (std::vector<std::vector<std::string>>{{"d", "b"}, {"c", "e"}, {"a"}}));
  }
}

TEST_P(FusionLimits, M15TFlushesTheBuffersOfAllBackendsAtOnce) {
  TestJob job = Make(kB);
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<std::vector<OpId>> operations;
    for (int i = 0; i < 20; ++i) {
      wire::Signature one = Tensor("t" + std::to_string(i), {kKib});
      one.backend = i % 2 == 0 ? "first" : "second";
      operations.push_back(job.SubmitAll(one));
    }
    job.RunFor(kT - kMs);
    EXPECT_TRUE(TakePlans(&job).empty()) << "both buffers are partly filled";
    job.RunFor(kMs);
    EXPECT_TRUE(AllDone(&job, operations));
    const std::vector<Plan> plans = TakePlans(&job);
    ASSERT_EQ(plans.size(), 2u);
    EXPECT_NE(plans[0].choice.backend, plans[1].choice.backend) << "each runs in a lane of its own";
  }
}

INSTANTIATE_TEST_SUITE_P(All, FusionLimits, ::testing::Values("bits", "leaders", "coordinator", "tree"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace horocache::control
