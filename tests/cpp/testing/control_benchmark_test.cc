#include "testing/control_benchmark.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace horocache::testing {
namespace {

ControlCost Cost(const std::string& strategy, int ranks, bool cache, int tensors = 20) {
  auto cost = Measure({.strategy = strategy, .ranks = ranks, .tensors = tensors, .cache = cache, .steps = 3});
  EXPECT_TRUE(cost.ok()) << cost.status().message();
  return cost.ok() ? *cost : ControlCost{};
}

TEST(ControlBenchmark, EveryStrategyCompletesItsSteps) {
  for (const std::string strategy : {"bits", "leaders", "coordinator", "tree", "bits by messages"}) {
    for (const int ranks : {2, 3, 8, 13, 32}) {
      for (const bool cache : {true, false}) {
        SCOPED_TRACE(strategy + " " + std::to_string(ranks) + (cache ? " cached" : ""));
        const ControlCost cost = Cost(strategy, ranks, cache);
        EXPECT_GE(cost.rounds, 1);
        EXPECT_LE(cost.rounds, 2);
      }
    }
  }
}

TEST(ControlBenchmark, RefusesInvalidOptions) {
  EXPECT_EQ(Measure({.ranks = 1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Measure({.strategy = "nonsense"}).status().code(), StatusCode::kInvalidArgument);
}

TEST(ControlBenchmark, CountsTheMessagesThatEachDesignSends) {
  // One message up and one down for each rank but rank 0.
  EXPECT_EQ(Cost("coordinator", 16, true).messages, 2 * 15);
  EXPECT_EQ(Cost("tree", 16, true).messages, 2 * 15);
  // log2(N) messages per rank.
  EXPECT_EQ(Cost("bits by messages", 16, true).messages, 16 * 4);
}

TEST(ControlBenchmark, WithTheCacheTheNumberOfBytesDoesNotDependOnNames) {
  const double cached = Cost("coordinator", 8, true).bytes, uncached = Cost("coordinator", 8, false).bytes;
  EXPECT_LT(cached * 10, uncached);
}

}  // namespace
}  // namespace horocache::testing
