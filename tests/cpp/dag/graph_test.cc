#include "dag/graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

namespace horocache::dag {
namespace {

std::vector<Handle> Ready(Graph* graph) {
  std::vector<Handle> ready;
  graph->TakeReady(&ready);
  return ready;
}

Handle Push(Graph* graph, std::vector<Handle> reads, std::vector<Handle> writes) {
  StatusOr<Handle> pushed = graph->Push({}, reads, writes);
  EXPECT_TRUE(pushed.ok()) << pushed.status().message();
  return *pushed;
}

FailurePtr Fails(const char* why) {
  return std::make_shared<const Failure>(Failure{{StatusCode::kInternal, why}, nullptr});
}

TEST(Graph, ReadersWaitForTheWriterBeforeThemAndTheNextWriterForAllOfThem) {
  Graph graph;
  const Handle x = graph.AddVariable();
  const Handle a = Push(&graph, {}, {x});
  const Handle b = Push(&graph, {x}, {});
  const Handle c = Push(&graph, {x}, {});
  const Handle d = Push(&graph, {}, {x});
  const Handle e = Push(&graph, {x}, {});
  EXPECT_EQ(Ready(&graph), std::vector{a});
  EXPECT_TRUE(graph.Complete(a, nullptr).ok());
  EXPECT_EQ(Ready(&graph), (std::vector{b, c}));
  EXPECT_TRUE(graph.Complete(c, nullptr).ok());
  EXPECT_TRUE(Ready(&graph).empty());
  EXPECT_TRUE(graph.Complete(b, nullptr).ok());
  EXPECT_EQ(Ready(&graph), std::vector{d});
  EXPECT_EQ(graph.version(x), 1u);
  EXPECT_TRUE(graph.Complete(d, nullptr).ok());
  EXPECT_EQ(Ready(&graph), std::vector{e});
  EXPECT_EQ(graph.version(x), 2u);
  EXPECT_TRUE(graph.IsReadable(x));
  EXPECT_TRUE(graph.Complete(e, nullptr).ok());
  EXPECT_EQ(graph.pending(), 0u);
}

TEST(Graph, ALateReaderDoesNotOvertakeAWaitingWriter) {
  Graph graph;
  const Handle x = graph.AddVariable();
  const Handle first = Push(&graph, {x}, {});
  const Handle writer = Push(&graph, {}, {x});
  const Handle late = Push(&graph, {x}, {});
  EXPECT_EQ(Ready(&graph), std::vector{first});
  EXPECT_FALSE(graph.IsReadable(x));
  EXPECT_TRUE(graph.Complete(first, nullptr).ok());
  EXPECT_EQ(Ready(&graph), std::vector{writer});
  EXPECT_TRUE(graph.Complete(writer, nullptr).ok());
  EXPECT_EQ(Ready(&graph), std::vector{late});
}

TEST(Graph, D4AVariableThatIsNamedTwiceCountsOnceAndAsWritten) {
  Graph graph;
  const Handle x = graph.AddVariable();
  const Handle y = graph.AddVariable();
  const Handle both = Push(&graph, {x, y, x}, {x, x});
  const Handle reader = Push(&graph, {x}, {});
  const Handle other = Push(&graph, {y}, {});
  EXPECT_EQ(Ready(&graph), (std::vector{both, other}));
  EXPECT_TRUE(graph.Complete(both, nullptr).ok());
  EXPECT_EQ(graph.version(x), 1u);
  EXPECT_EQ(Ready(&graph), std::vector{reader});
}

TEST(Graph, D7AnOperationEndsOnceAndOnlyIfItIsReady) {
  Graph graph;
  const Handle x = graph.AddVariable();
  const Handle a = Push(&graph, {}, {x});
  const Handle b = Push(&graph, {}, {x});
  EXPECT_FALSE(graph.Complete(b, nullptr).ok());
  EXPECT_TRUE(graph.Complete(a, nullptr).ok());
  EXPECT_FALSE(graph.Complete(a, nullptr).ok());
  const Handle c = Push(&graph, {}, {});  // takes the place of `a`
  EXPECT_NE(a, c);
  EXPECT_FALSE(graph.Complete(a, nullptr).ok());
  EXPECT_TRUE(graph.Complete(b, nullptr).ok());
}

TEST(Graph, D5AFailureReachesWhateverDependsOnIt) {
  Graph graph;
  const Handle x = graph.AddVariable(), y = graph.AddVariable(), z = graph.AddVariable(), other = graph.AddVariable();
  const Handle a = Push(&graph, {}, {x});
  const Handle b = Push(&graph, {x}, {y});
  const Handle c = Push(&graph, {y}, {z});
  const Handle d = Push(&graph, {}, {other});
  const FailurePtr failure = Fails("a");
  EXPECT_EQ(Ready(&graph), (std::vector{a, d}));
  EXPECT_TRUE(graph.Complete(a, failure).ok());
  EXPECT_EQ(graph.Inherited(b), failure);
  EXPECT_EQ(graph.Inherited(d), nullptr);
  EXPECT_TRUE(graph.Complete(b, graph.Inherited(b)).ok());
  EXPECT_TRUE(graph.Complete(c, graph.Inherited(c)).ok());
  EXPECT_TRUE(graph.Complete(d, nullptr).ok());
  EXPECT_EQ(graph.TakeFailure(other), nullptr);
  EXPECT_EQ(graph.TakeFailure(z), failure);
  EXPECT_EQ(graph.TakeFailure(z), nullptr);
  EXPECT_EQ(graph.TakeFailure(x), failure);
  graph.ForgetFailures();
  EXPECT_EQ(graph.TakeFailure(y), nullptr);
}

TEST(Graph, AVariableThatOnlyOrdersTakesNoFailure) {
  Graph graph;
  const Handle x = graph.AddVariable(), lane = graph.AddVariable(/*carries=*/false);
  const Handle a = Push(&graph, {}, {x, lane});
  const Handle b = Push(&graph, {}, {lane});
  EXPECT_TRUE(graph.Complete(a, Fails("a")).ok());
  EXPECT_EQ(Ready(&graph).back(), b);
  EXPECT_EQ(graph.Inherited(b), nullptr);
  EXPECT_FALSE(graph.IsIdle(lane));
  EXPECT_TRUE(graph.Complete(b, nullptr).ok());
  EXPECT_TRUE(graph.IsIdle(lane));
  EXPECT_FALSE(graph.IsIdle(x)) << "it has a failure";
  EXPECT_NE(graph.TakeFailure(x), nullptr);
  EXPECT_TRUE(graph.IsIdle(x));
}

TEST(Graph, D9ADeletedVariableServesTheOperationsThatHaveItAndNoOther) {
  Graph graph;
  const Handle x = graph.AddVariable();
  const Handle y = graph.AddVariable();
  const Handle a = Push(&graph, {}, {x});
  const Handle b = Push(&graph, {x}, {});
  EXPECT_TRUE(graph.DeleteVariable(x).ok());
  EXPECT_FALSE(graph.DeleteVariable(x).ok());
  EXPECT_FALSE(graph.HasVariable(x));
  EXPECT_EQ(graph.Push({}, std::vector{y}, std::vector{x}).status().message(),
            "an operation writes a variable that has been deleted");
  EXPECT_EQ(graph.Push({}, std::vector{y, x}, {}).status().message(),
            "an operation reads a variable that has been deleted");
  EXPECT_EQ(graph.pending(), 2u);
  EXPECT_TRUE(graph.Complete(a, nullptr).ok());
  EXPECT_EQ(graph.variables(), 2u);
  EXPECT_TRUE(graph.Complete(b, nullptr).ok());
  EXPECT_EQ(graph.variables(), 1u);
  EXPECT_NE(graph.AddVariable(), x);
  EXPECT_TRUE(graph.DeleteVariable(y).ok());
}

// Random programs in random legal orders give what their serial execution gives, whatever is lost or overtaken.
TEST(Graph, D1RandomProgramsGiveWhatTheirSerialExecutionGives) {
  struct Step {
    std::vector<size_t> reads;
    size_t writes;
  };
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const size_t num_variables = 1 + random() % 30;
    std::vector<Step> steps(200);
    for (Step& step : steps) {
      step.reads.resize(random() % std::min<size_t>(20, num_variables + 1));
      for (size_t& read : step.reads) read = random() % num_variables;
      step.writes = random() % num_variables;
    }
    const auto run = [&](size_t number, std::vector<uint64_t>* values) {
      uint64_t sum = number;
      for (const size_t read : steps[number].reads) sum = sum * 31 + (*values)[read];
      (*values)[steps[number].writes] = (*values)[steps[number].writes] * 17 + sum;
    };
    std::vector<uint64_t> expected(num_variables, 1);
    for (size_t number = 0; number < steps.size(); ++number) run(number, &expected);

    Graph graph;
    std::vector<Handle> variables(num_variables);
    for (Handle& variable : variables) variable = graph.AddVariable();
    std::vector<uint64_t> values(num_variables, 1);
    std::map<Handle, size_t> number_of;
    std::vector<Handle> ready;
    size_t pushed = 0;
    while (pushed < steps.size() || !ready.empty()) {
      if (pushed < steps.size() && (ready.empty() || random() % 2 == 0)) {
        std::vector<Handle> reads;
        for (const size_t read : steps[pushed].reads) reads.push_back(variables[read]);
        number_of[Push(&graph, reads, {variables[steps[pushed].writes]})] = pushed;
        ++pushed;
      } else {
        std::swap(ready[random() % ready.size()], ready.back());
        const Handle operation = ready.back();
        ready.pop_back();
        run(number_of.at(operation), &values);
        ASSERT_TRUE(graph.Complete(operation, nullptr).ok());
        number_of.erase(operation);
      }
      graph.TakeReady(&ready);
    }
    EXPECT_EQ(values, expected) << "seed " << seed;
    EXPECT_EQ(graph.pending(), 0u);
    for (size_t i = 0; i < num_variables; ++i) {
      const auto writes = std::ranges::count(steps, i, &Step::writes);
      EXPECT_EQ(graph.version(variables[i]), static_cast<uint64_t>(writes));
    }
  }
}

TEST(Graph, D10ASteadyStateAllocatesNothing) {
  Graph graph;
  const Handle x = graph.AddVariable(), y = graph.AddVariable();
  const std::vector reads{x}, writes{y};
  std::vector<Handle> ready;
  const auto rounds = [&](int count) {
    for (int round = 0; round < count; ++round) {
      for (int number = 0; number < 50; ++number) ASSERT_TRUE(graph.Push({}, reads, writes).ok());
      while (graph.pending() > 0) {
        ready.clear();
        graph.TakeReady(&ready);
        for (const Handle operation : ready) ASSERT_TRUE(graph.Complete(operation, nullptr).ok());
      }
    }
  };
  rounds(2);
  const uint64_t before = graph.allocations();
  rounds(1000);
  EXPECT_EQ(graph.allocations(), before);
}

}  // namespace
}  // namespace horocache::dag
