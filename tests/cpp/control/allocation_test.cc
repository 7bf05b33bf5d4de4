// Steady state allocates nothing per tensor: the number of allocations of a step does not depend on its number of
// tensors.
#include <gtest/gtest.h>

#include "base/allocations.h"
#include "control/test_network.h"

namespace horocache::control {
namespace {

// Repeats a step of small tensors and groups with data, and checks the allocations. `may_be_inline`: the
// operations may be inline.
void RunSteadySteps(bool may_be_inline) {
  constexpr int kTensors = 500;
  TestHub hub(1);
  ControllerConfig config;
  BackendTraits any{.name = "any", .ops = ~0u, .device_classes = ~0u};
  any.plain_fold = may_be_inline;
  config.selector = Selector::Parse({any}, {1}, "").value();
  Controller controller(config);
  const auto agreement = MakeAgreement({});
  TestChannel channel(&hub, 0);
  std::vector<wire::Request> requests(kTensors);
  for (int i = 0; i < kTensors; ++i) {
    requests[static_cast<size_t>(i)].signature =
        i % 5 == 0 ? Group("group." + std::to_string(i) + " with a long name",
                           {"member a of " + std::to_string(i), "member b of " + std::to_string(i)})
                   : Tensor("tensor with a name that does not fit into a string's own buffer " + std::to_string(i));
    requests[static_cast<size_t>(i)].signature.priority = i % 7;
  }
  Plan plan;
  int64_t now = 1;
  int64_t in_submit = 0, in_step = 0, done = 0, inline_plans = 0;
  const std::vector<std::byte> bytes(32);  // the data of a group of two
  for (int step = 0; step < 6; ++step) {
    now += kS;
    uint64_t before = Allocations();
    for (int i = 0; i < kTensors; ++i) {
      const auto data = std::span(bytes).first(i % 5 == 0 ? 32 : 16);
      ASSERT_TRUE(controller.Submit(static_cast<OpId>(i) + 1, requests[static_cast<size_t>(i)], now, data).ok());
    }
    in_submit = static_cast<int64_t>(Allocations() - before);
    controller.SetWaiting(true, true);
    before = Allocations();
    while (agreement->Step(controller, channel, now).value()) {
    }
    for (; controller.NextPlan(&plan); inline_plans += plan.is_inline() ? 1 : 0)
      done += static_cast<int64_t>(plan.items.size());
    in_step = static_cast<int64_t>(Allocations() - before);
  }
  EXPECT_EQ(done, 6 * kTensors);
  EXPECT_EQ(inline_plans > 0, may_be_inline);
  EXPECT_EQ(in_submit, 0);
  EXPECT_LT(in_step, 30) << "the channel of this test allocates a little";
}

class Allocation : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!CountsAllocations()) GTEST_SKIP() << "this build does not count allocations";
  }
};

TEST_F(Allocation, OfASteadyStepIsNothingPerTensor) { RunSteadySteps(/*may_be_inline=*/false); }

TEST_F(Allocation, OfInlineAllreducesIsNothingPerTensor) { RunSteadySteps(/*may_be_inline=*/true); }

}  // namespace
}  // namespace horocache::control
