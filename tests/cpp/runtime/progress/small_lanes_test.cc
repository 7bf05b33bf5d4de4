#include "runtime/progress/small_lanes.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace horocache::runtime {
namespace {

// A plan of whole operations with one tensor each, of these bytes.
control::Plan PlanOf(const std::vector<int64_t>& bytes, wire::Op op = wire::Op::kAllreduce) {
  control::Plan plan;
  plan.op = op;
  for (const int64_t size : bytes) {
    auto signature = std::make_shared<wire::Signature>();
    signature->op = op;
    signature->tensors.push_back({"t", DType::kUint8, {size}});
    control::PlanItem item;
    item.signature = std::move(signature);
    item.num_tensors = 1;
    plan.items.push_back(std::move(item));
  }
  return plan;
}

// Backend 0 has two small lanes, backend 2 has one.
SmallLanes Make(int64_t most_bytes = 100) {
  SmallLanes lanes(most_bytes);
  lanes.Add(0, 3);
  lanes.Add(2, 4);
  lanes.Add(0, 5);
  return lanes;
}

TEST(SmallLanes, SmallOperationsTakeTheLanesOfTheirBackendInTurn) {
  SmallLanes lanes = Make();
  EXPECT_EQ(lanes.Next(0, PlanOf({1})), 3u);
  EXPECT_EQ(lanes.Next(2, PlanOf({1})), 4u);
  EXPECT_EQ(lanes.Next(0, PlanOf({100})), 5u);
  EXPECT_EQ(lanes.Next(0, PlanOf({0})), 3u);
  EXPECT_EQ(lanes.Next(2, PlanOf({1})), 4u);
}

TEST(SmallLanes, LargeOperationsStayInTheMainLaneAndTakeNoTurn) {
  SmallLanes lanes = Make();
  EXPECT_EQ(lanes.Next(0, PlanOf({101})), 0u);
  EXPECT_EQ(lanes.Next(0, PlanOf({60, 41})), 0u) << "what is fused counts together";
  EXPECT_EQ(lanes.Next(0, PlanOf({60, 40})), 3u);
}

TEST(SmallLanes, BackendsWithoutSmallLanesHaveTheirMainLaneAlone) {
  SmallLanes lanes = Make();
  EXPECT_EQ(lanes.Next(1, PlanOf({1})), 1u);
  EXPECT_EQ(lanes.Next(7, PlanOf({1})), 7u);
  EXPECT_EQ(SmallLanes(100).Next(0, PlanOf({1})), 0u);
}

TEST(SmallLanes, OnlyOperationsOfOneSizeOnAllRanksAreSmall) {
  for (int i = 0; i < wire::kNumOps; ++i) {
    const auto op = static_cast<wire::Op>(i);
    const bool small = op == wire::Op::kAllreduce || op == wire::Op::kBroadcast || op == wire::Op::kReduce;
    EXPECT_EQ(Make().Next(0, PlanOf({1}, op)), small ? 3u : 0u) << wire::OpName(op);
  }
}

TEST(SmallLanes, PiecesOfAGroupStayInTheMainLane) {
  SmallLanes lanes = Make();
  control::Plan first = PlanOf({1}), last = PlanOf({1});
  auto group = std::make_shared<wire::Signature>(*first.items[0].signature);
  group->tensors.push_back(group->tensors[0]);
  first.items[0].signature = last.items[0].signature = group;
  first.items[0].last_piece = false;
  last.items[0].first_tensor = 1;
  EXPECT_EQ(lanes.Next(0, first), 0u);
  EXPECT_EQ(lanes.Next(0, last), 0u);
  last.items[0] = {.signature = group, .num_tensors = 2};
  EXPECT_EQ(lanes.Next(0, last), 3u) << "a whole group is one operation";
}

TEST(SmallLanes, TensorsOfADeviceStayInTheMainLane) {
  SmallLanes lanes = Make();
  control::Plan plan = PlanOf({1});
  plan.device_class = wire::DeviceClass::kCuda;
  EXPECT_EQ(lanes.Next(0, plan), 0u);
}

}  // namespace
}  // namespace horocache::runtime
