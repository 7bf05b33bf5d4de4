#include "control/fusion_planner.h"

#include <gtest/gtest.h>

#include "control/signature.h"
#include "control/test_network.h"

namespace horocache::control {
namespace {

// Plans as text: "a b | c[0+2]" for two plans; pieces of groups show their range.
class Planning {
 public:
  Planning(int64_t threshold, bool disable_group_fusion = false) : planner_(threshold, disable_group_fusion, 9) {}

  Planning& Add(const wire::Signature& signature, wire::Choice choice = {}) {
    auto shared = std::make_shared<const wire::Signature>(signature);
    planner_.Add(next_op_++, shared, choice, SignatureBytes(signature));
    return *this;
  }
  // `elements` floats, 4 bytes each.
  Planning& Add(const std::string& name, int64_t elements) { return Add(Tensor(name, {elements})); }

  void SetThreshold(int64_t bytes) { planner_.SetThreshold(bytes); }
  std::string Run() {
    planner_.Run({}, 1);
    std::string text;
    Plan plan;
    while (planner_.Next(&plan)) {
      if (!text.empty()) text += " | ";
      for (size_t i = 0; i < plan.items.size(); ++i) {
        const PlanItem& item = plan.items[i];
        if (i > 0) text += " ";
        text += item.signature->name;
        if (item.signature->tensors.size() > 1) {
          text += "[" + std::to_string(item.first_tensor) + "+" + std::to_string(item.num_tensors) + "]";
        }
        if (!item.last_piece) text += "...";
      }
      sequences.push_back(plan.sequence);
      last = plan;
    }
    return text;
  }

  std::vector<uint64_t> sequences;
  Plan last;

 private:
  FusionPlanner planner_;
  OpId next_op_ = 1;
};

TEST(FusionPlanner, FusesUpToTheThresholdInOrder) {
  EXPECT_EQ(Planning(40).Add("a", 4).Add("b", 4).Add("c", 2).Add("d", 1).Run(), "a b c | d");
}

TEST(FusionPlanner, ThresholdZeroIsNoFusion) {
  EXPECT_EQ(Planning(0).Add("a", 4).Add("b", 0).Add(Group("g", {"x", "y"})).Run(), "a | b | g[0+1]... | g[1+1]");
}

TEST(FusionPlanner, ATensorLargerThanTheThresholdRunsAlone) {
  EXPECT_EQ(Planning(8).Add("big", 100).Add("a", 1).Add("b", 1).Run(), "big | a b");
}

TEST(FusionPlanner, LooksAheadOverOtherOperations) {
  EXPECT_EQ(Planning(100).Add("a", 4).Add(Tensor("h", {4}, DType::kFloat16)).Add("b", 4).Run(), "a b | h");
}

TEST(FusionPlanner, LooksAheadOverOperationsThatAreTooLarge) {
  // The group (88 bytes) does not fit beside a (40 bytes) and is set aside. Together they exceed the threshold of 100,
  // so the search ends before b.
  EXPECT_EQ(Planning(100).Add("a", 10).Add(Group("g", {"x", "y"}, 11)).Add("b", 1).Run(), "a | g[0+2] b");
  // With 44 bytes set aside the sum is 84, so the search goes on and finds b.
  EXPECT_EQ(Planning(100).Add("a", 10).Add(Tensor("h", {22}, DType::kFloat16)).Add("b", 1).Run(), "a b | h");
}

TEST(FusionPlanner, TheSearchEndsWhenThePlanAndSkippedOperationsExceedTheThreshold) {
  EXPECT_EQ(Planning(100).Add("a", 10).Add(Tensor("h", {31}, DType::kFloat16)).Add("b", 1).Run(), "a | h | b");
  EXPECT_EQ(Planning(100).Add("a", 10).Add(Tensor("h", {30}, DType::kFloat16)).Add("b", 1).Run(), "a b | h");
}

TEST(FusionPlanner, SkippedOperationsKeepTheirOrder) {
  EXPECT_EQ(Planning(1000)
                .Add("a", 1)
                .Add(Tensor("h1", {1}, DType::kFloat16))
                .Add(Tensor("i1", {1}, DType::kInt32))
                .Add("b", 1)
                .Add(Tensor("h2", {1}, DType::kFloat16))
                .Add(Tensor("i2", {1}, DType::kInt32))
                .Run(),
            "a b | h1 h2 | i1 i2");
}

TEST(FusionPlanner, OnlyEqualOperationsFuse) {
  const auto with = [](const std::string& name, auto&& change) {
    wire::Signature signature = Tensor(name);
    change(signature);
    return signature;
  };
  Planning planning(1000);
  planning.Add("a", 1);
  planning.Add(with("op", [](auto& s) {
    s.op = wire::Op::kBroadcast;
    s.root = 0;
  }));
  planning.Add(with("root", [](auto& s) {
    s.op = wire::Op::kBroadcast;
    s.root = 1;
  }));
  planning.Add(with("reduce", [](auto& s) { s.reduce_op = wire::ReduceOp::kMax; }));
  planning.Add(with("pre", [](auto& s) { s.prescale = 2; }));
  planning.Add(with("post", [](auto& s) { s.postscale = 2; }));
  planning.Add(with("device", [](auto& s) { s.device_class = wire::DeviceClass::kFake; }));
  planning.Add(with("layers", [](auto& s) { s.layers = "compression=fp16"; }));
  planning.Add(Tensor("choice"), {0, 1, 0});
  planning.Add("b", 1);
  EXPECT_EQ(planning.Run(), "a b | op | root | reduce | pre | post | device | layers | choice");
}

TEST(FusionPlanner, WhatHasChosenABackendMakesNoDifference) {
  Planning planning(1000);
  const auto chosen = [](wire::ChosenBy by) { return wire::Choice{1, 2, 1, by}; };
  planning.Add(Tensor("a"), chosen(wire::ChosenBy::kCall));
  planning.Add(Tensor("b"), chosen(wire::ChosenBy::kTable));
  planning.Add(Group("g", {"x", "y"}), chosen(wire::ChosenBy::kRule));
  planning.Add(Tensor("c"), {1, 0, 1, wire::ChosenBy::kCall});
  EXPECT_EQ(planning.Run(), "a b g[0+2] | c");
  planning.Add(Tensor("a"), chosen(wire::ChosenBy::kCall));
  planning.Add(Group("g", {"x", "y"}), chosen(wire::ChosenBy::kTable));
  planning.Run();
  ASSERT_EQ(planning.last.items.size(), 2u);
  EXPECT_EQ(planning.last.items[0].chosen_by, wire::ChosenBy::kCall);
  EXPECT_EQ(planning.last.items[1].chosen_by, wire::ChosenBy::kTable);
}

TEST(FusionPlanner, AnotherThresholdHoldsForLaterRuns) {
  Planning planning(40);
  EXPECT_EQ(planning.Add("a", 4).Add("b", 4).Run(), "a b");
  planning.SetThreshold(16);
  EXPECT_EQ(planning.Add("a", 4).Add("b", 4).Run(), "a | b");
  EXPECT_EQ(planning.Add(Group("g", {"x", "y"})).Run(), "g[0+1]... | g[1+1]");
  planning.SetThreshold(0);
  EXPECT_EQ(planning.Add("a", 1).Add("b", 1).Run(), "a | b");
  planning.SetThreshold(40);
  EXPECT_EQ(planning.Add("a", 1).Add("b", 1).Run(), "a b");
  EXPECT_EQ(planning.sequences.back() + 1, planning.sequences.size()) << "sequences go on";
}

TEST(FusionPlanner, OtherOperationsDoNotFuse) {
  for (const wire::Op op : {wire::Op::kAllgather, wire::Op::kAlltoall, wire::Op::kReducescatter, wire::Op::kGather,
                            wire::Op::kScatter, wire::Op::kBarrier}) {
    EXPECT_EQ(Planning(1000).Add(OfOp(op, "a", 0)).Add(OfOp(op, "b", 0)).Run(), "a | b") << OpName(op);
  }
  for (const wire::Op op : {wire::Op::kAllreduce, wire::Op::kBroadcast, wire::Op::kReduce}) {
    EXPECT_EQ(Planning(1000).Add(OfOp(op, "a", 0)).Add(OfOp(op, "b", 0)).Run(), "a b") << OpName(op);
  }
}

TEST(FusionPlanner, AGroupOfAnOperationThatDoesNotFuseIsOnePlan) {
  wire::Signature group = Group("g", {"x", "y", "z"});
  group.op = wire::Op::kAllgather;
  EXPECT_EQ(Planning(4).Add(group).Run(), "g[0+3]");
}

TEST(FusionPlanner, AGroupIsFusedAsAWholeOrNotAtAll) {
  EXPECT_EQ(Planning(48).Add("a", 4).Add(Group("g", {"x", "y"})).Run(), "a g[0+2]");
  EXPECT_EQ(Planning(47).Add("a", 4).Add(Group("g", {"x", "y"})).Run(), "a | g[0+2]");
}

TEST(FusionPlanner, ALargeGroupRunsInAdjacentPiecesAndOthersMayJoinTheLast) {
  EXPECT_EQ(Planning(32).Add(Group("g", {"u", "v", "w", "x", "y"})).Add("a", 4).Run(),
            "g[0+2]... | g[2+2]... | g[4+1] a");
}

TEST(FusionPlanner, AGroupOfMixedTypesRunsInPiecesOfOneType) {
  wire::Signature group = Group("g", {"u", "v", "w"});
  group.tensors[2].dtype = DType::kFloat16;
  EXPECT_EQ(Planning(1000).Add(group).Add("a", 4).Run(), "g[0+2]... | g[2+1] | a");
  EXPECT_EQ(Planning(1000).Add("a", 4).Add(group).Run(), "a | g[0+2]... | g[2+1]");
}

TEST(FusionPlanner, DisabledGroupFusionAddsNoOtherTensor) {
  EXPECT_EQ(Planning(1000, true).Add(Group("g", {"x", "y"})).Add("a", 1).Add("b", 1).Run(), "g[0+2] | a b");
  EXPECT_EQ(Planning(1000, true).Add("a", 1).Add(Group("g", {"x", "y"})).Add("b", 1).Run(), "a b | g[0+2]");
  EXPECT_EQ(Planning(1000, false).Add("a", 1).Add(Group("g", {"x", "y"})).Add("b", 1).Run(), "a g[0+2] b");
}

TEST(FusionPlanner, SequencesCountEveryPlanAndTheEpochIsCarried) {
  Planning planning(8);
  planning.Add(Group("g", {"x", "y", "z"}, 2)).Run();
  planning.Add("a", 1).Run();
  EXPECT_EQ(planning.sequences, (std::vector<uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(planning.last.epoch, 9u);
}

TEST(FusionPlanner, PlansOfEarlierRunsAreKeptUntilTaken) {
  FusionPlanner planner(1000, false, 0);
  const auto add = [&](const std::string& name) {
    planner.Add(1, std::make_shared<const wire::Signature>(Tensor(name)), {}, 16);
    planner.Run({}, 1);
  };
  add("a");
  add("b");
  Plan plan;
  ASSERT_TRUE(planner.Next(&plan));
  EXPECT_EQ(plan.items[0].signature->name, "a");
  add("c");
  ASSERT_TRUE(planner.Next(&plan));
  EXPECT_EQ(plan.items[0].signature->name, "b");
  ASSERT_TRUE(planner.Next(&plan));
  EXPECT_EQ(plan.items[0].signature->name, "c");
  EXPECT_FALSE(planner.Next(&plan));
}

TEST(FusionPlanner, HugeShapesDoNotOverflow) {
  wire::Signature huge = Tensor("huge", {int64_t{1} << 40, int64_t{1} << 40});
  EXPECT_EQ(SignatureBytes(huge), int64_t{1} << 62);
  EXPECT_EQ(TensorBytes({"empty", DType::kFloat64, {int64_t{1} << 62, int64_t{1} << 62, 0}}), 0);
  EXPECT_EQ(Planning(1000).Add("a", 1).Add(huge).Add("b", 1).Run(), "a | huge | b");
}

}  // namespace
}  // namespace horocache::control
