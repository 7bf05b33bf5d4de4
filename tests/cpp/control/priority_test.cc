// The order in which operations of different priorities are planned.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "control/fusion_planner.h"
#include "control/signature.h"
#include "control/test_network.h"

namespace horocache::control {
namespace {

wire::Signature Prioritized(wire::Signature signature, int32_t priority) {
  signature.priority = priority;
  return signature;
}

std::string Text(const Plan& plan) {
  std::string text;
  for (const PlanItem& item : plan.items) text += (text.empty() ? "" : " ") + item.signature->name;
  return text;
}

// The plans of successive rounds as text: "a b | c".
class Rounds {
 public:
  explicit Rounds(int64_t threshold) : planner_(threshold, false, 0) {}

  Rounds& Add(const wire::Signature& signature) {
    planner_.Add(next_op_++, std::make_shared<const wire::Signature>(signature), {}, SignatureBytes(signature));
    return *this;
  }
  // A tensor of 4 bytes.
  Rounds& Add(const std::string& name, int32_t priority) { return Add(Prioritized(Tensor(name, {1}), priority)); }
  Rounds& Run() {
    planner_.Run({}, 1);
    return *this;
  }
  std::string Plans() {
    std::string text;
    Plan plan;
    while (planner_.Next(&plan)) text += (text.empty() ? "" : " | ") + Text(plan);
    return text;
  }

 private:
  FusionPlanner planner_;
  OpId next_op_ = 1;
};

TEST(Priority, HigherPrioritiesArePlannedEarlier) {
  EXPECT_EQ(Rounds(0).Add("a", 0).Add("b", 3).Add("c", 1).Add("d", -2).Run().Plans(), "b | c | a | d");
}

TEST(Priority, EqualPrioritiesKeepTheAgreedOrder) {
  EXPECT_EQ(Rounds(0).Add("a", 1).Add("b", 2).Add("c", 1).Add("d", 2).Add("e", 1).Run().Plans(), "b | d | a | c | e");
}

TEST(Priority, WithoutPrioritiesTheAgreedOrderStays) {
  EXPECT_EQ(Rounds(0).Add("c", 0).Add("a", 0).Add("b", 0).Run().Plans(), "c | a | b");
}

TEST(Priority, TheSmallestAndLargestValuesAreOrdered) {
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min(), kMost = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(Rounds(0).Add("least", kLeast).Add("zero", 0).Add("most", kMost).Run().Plans(), "most | zero | least");
}

TEST(Priority, OperationsOfDifferentPrioritiesAreFused) {
  EXPECT_EQ(Rounds(8).Add("a", 0).Add("b", 1).Add("c", 2).Run().Plans(), "c b | a");
  EXPECT_EQ(Rounds(100).Add("a", 0).Add("b", 1).Add("c", 2).Run().Plans(), "c b a");
}

TEST(Priority, PlansOfEarlierRoundsStayFirst) {
  Rounds rounds(0);
  rounds.Add("a", 0).Add("b", 1).Run().Add("c", 9).Add("d", 10).Run();
  EXPECT_EQ(rounds.Plans(), "b | a | d | c");
}

TEST(Priority, ARoundWithoutPrioritiesKeepsItsOrderAfterARoundWithPriorities) {
  Rounds rounds(0);
  rounds.Add("a", 0).Add("b", 1).Run().Add("d", 0).Add("c", 0).Run();
  EXPECT_EQ(rounds.Plans(), "b | a | d | c");
}

TEST(Priority, AGroupLargerThanTheThresholdStaysTogether) {
  const wire::Signature group = Prioritized(Group("g", {"x", "y"}, 4), 5);
  EXPECT_EQ(Rounds(16).Add("a", 1).Add(group).Add("b", 9).Run().Plans(), "b | g | g | a");
}

// ---- through whole jobs

std::vector<std::string> PlannedOn(const TestJob& job, int rank) {
  std::vector<std::string> texts;
  for (const Plan& plan : job.plans[static_cast<size_t>(rank)]) texts.push_back(Text(plan));
  return texts;
}

TEST(Priority, EveryRankRunsARoundByPriorityNewOrCached) {
  ControllerConfig config;
  config.fusion_threshold_bytes = 0;
  TestJob job(3, config);
  for (int step = 0; step < 3; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      for (int i = 0; i < 5; ++i) {
        const int number = (i + 2 * rank + step) % 5;  // each rank has its own order
        job.Submit(rank, Prioritized(Tensor("t" + std::to_string(number)), number % 3));
      }
    }
    job.WaitAll();
    job.Settle();
    for (int rank = 0; rank < 3; ++rank) job.StopWaiting(rank);
    job.Settle();
  }
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<std::string> planned = PlannedOn(job, rank);
    ASSERT_EQ(planned.size(), 15u);
    EXPECT_EQ(planned, PlannedOn(job, 0)) << "rank " << rank;
    for (size_t step = 0; step < 3; ++step) {
      EXPECT_EQ(planned[5 * step], "t2");
      EXPECT_EQ(std::set<std::string>(&planned[5 * step + 1], &planned[5 * step + 3]),
                (std::set<std::string>{"t1", "t4"}));
      EXPECT_EQ(std::set<std::string>(&planned[5 * step + 3], &planned[5 * step] + 5),
                (std::set<std::string>{"t0", "t3"}));
    }
  }
}

TEST(Priority, ADifferenceFailsOnAllRanksAndNamesBoth) {
  TestJob job(3);
  std::vector<OpId> ops;
  for (int rank = 0; rank < 3; ++rank) ops.push_back(job.Submit(rank, Prioritized(Tensor("x"), rank == 1 ? 4 : 3)));
  job.WaitAll();
  job.Settle();
  for (int rank = 0; rank < 3; ++rank) {
    const Outcome& outcome = job.Of(rank, ops[static_cast<size_t>(rank)]);
    EXPECT_EQ(outcome.status.code(), StatusCode::kMismatch);
    EXPECT_NE(outcome.status.message().find("rank 0 submitted priority 3, rank 1 submitted priority 4"),
              std::string::npos)
        << outcome.status.message();
  }
}

TEST(Priority, APriorityThatChangesOnAllRanksIsNegotiatedOnce) {
  ControllerConfig config;
  config.fusion_threshold_bytes = 0;
  TestJob job(2, config);
  const auto step = [&](int32_t of_a) {
    job.SubmitAll(Prioritized(Tensor("a"), of_a));
    job.SubmitAll(Prioritized(Tensor("b"), 1));
    job.WaitAll();
    job.Settle();
    const std::vector<std::string> planned = PlannedOn(job, 1);
    return planned[planned.size() - 2];
  };
  EXPECT_EQ(step(2), "a");
  EXPECT_EQ(step(2), "a");
  step(0);  // a is negotiated and therefore comes after b, which is cached, in the same or in a later round
  EXPECT_EQ(step(0), "b");
  EXPECT_EQ(job[1].counters().changed, 1u);
}

}  // namespace
}  // namespace horocache::control
