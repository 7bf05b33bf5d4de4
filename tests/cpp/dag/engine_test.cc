#include "dag/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/sanitized.h"

namespace horocache::dag {
namespace {

constexpr double kLimitSeconds = 60;  // nothing takes that long

FailurePtr Fails(std::string why) {
  return std::make_shared<const Failure>(Failure{{StatusCode::kInternal, std::move(why)}, nullptr});
}

// Runs a function, and deletes itself.
class Call final : public Task {
 public:
  using Body = std::function<Outcome(Handle)>;
  explicit Call(Body body, std::string name = "call", std::function<void(bool)> on_end = {})
      : body_(std::move(body)), name_(std::move(name)), on_end_(std::move(on_end)) {}
  Outcome Run(Handle operation, const FailurePtr&) override { return body_(operation); }
  void Ended(const FailurePtr&, bool ran) override {
    if (on_end_) on_end_(ran);
    delete this;
  }
  std::string Name() const override { return name_; }

 private:
  const Body body_;
  const std::string name_;
  const std::function<void(bool)> on_end_;
};

void Push(Engine* engine, std::vector<Handle> reads, std::vector<Handle> writes, Call::Body body,
          Engine::How how = {}) {
  const Status pushed = engine->Push(new Call(std::move(body)), reads, writes, how);
  ASSERT_TRUE(pushed.ok()) << pushed.message();
}

void Push(Engine* engine, std::vector<Handle> reads, std::vector<Handle> writes, const std::function<void()>& body,
          Engine::How how = {}) {
  Push(
      engine, std::move(reads), std::move(writes),
      [body](Handle) {
        body();
        return Outcome();
      },
      how);
}

FailurePtr Wait(Engine* engine, Handle variable) {
  FailurePtr failure;
  const StatusOr<bool> waited = engine->Wait(std::span(&variable, 1), DeadlineNs(kLimitSeconds), &failure);
  EXPECT_TRUE(waited.ok() && *waited);
  return failure;
}

FailurePtr WaitAll(Engine* engine) {
  FailurePtr failure;
  const StatusOr<bool> waited = engine->WaitAll(DeadlineNs(kLimitSeconds), &failure);
  EXPECT_TRUE(waited.ok() && *waited);
  return failure;
}

// A door that operations wait at, so that a test decides when they go on.
class Door {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void AwaitWaiting(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int waiting_ = 0;
};

// The naive engine, and engines of one and of several threads.
class AnyEngine : public testing::TestWithParam<int> {
 protected:
  Engine::Options options() const {
    return {GetParam() == 0 ? std::vector<int>{} : std::vector<int>{GetParam()}, "test"};
  }
};
INSTANTIATE_TEST_SUITE_P(Threads, AnyEngine, testing::Values(0, 1, 2, 8));

// Random programs: more and shorter ones by HC_TEST_ENGINE_PROGRAMS.
struct Programs {
  uint32_t count = 20;
  int operations = kSanitized ? 500 : 10'000;
};

Programs TestedPrograms() {
  const char* const given = std::getenv("HC_TEST_ENGINE_PROGRAMS");
  return given == nullptr ? Programs() : Programs{static_cast<uint32_t>(std::stoul(given)), 200};
}

TEST_P(AnyEngine, D1RandomProgramsGiveWhatTheirSerialExecutionGives) {
  const Programs programs = TestedPrograms();
  for (uint32_t seed = 0; seed < programs.count; ++seed) {
    std::mt19937 random(seed);
    std::vector<uint64_t> values(100, 1);
    std::vector<uint64_t> expected = values;
    Engine engine(options());
    std::vector<Handle> variables(values.size());
    for (Handle& variable : variables) variable = engine.AddVariable();
    for (int number = 0; number < programs.operations; ++number) {
      std::vector<size_t> reads(2 + random() % 19);
      for (size_t& read : reads) read = random() % values.size();
      const size_t write = random() % values.size();
      const auto step = [reads, write, number](std::vector<uint64_t>* on) {
        uint64_t sum = static_cast<uint64_t>(number);
        for (const size_t read : reads) sum = sum * 31 + (*on)[read];
        (*on)[write] = (*on)[write] * 17 + sum;
      };
      step(&expected);
      std::vector<Handle> handles;
      for (const size_t read : reads) handles.push_back(variables[read]);
      const auto priority = static_cast<int32_t>(random() % 5);
      Push(&engine, handles, {variables[write]}, [&values, step] { step(&values); }, {.priority = priority});
    }
    EXPECT_EQ(WaitAll(&engine), nullptr);
    EXPECT_EQ(values, expected) << "seed " << seed;
  }
}

TEST_P(AnyEngine, D3WritesOfAVariableRunInTheOrderOfPush) {
  Engine engine(options());
  const Handle x = engine.AddVariable();
  std::vector<int> order;
  for (int number = 0; number < 500; ++number) {
    Push(&engine, {}, {x}, [&order, number] { order.push_back(number); }, {.priority = number % 7});
  }
  EXPECT_EQ(Wait(&engine, x), nullptr);
  EXPECT_EQ(engine.Version(x), 500u);
  EXPECT_TRUE(std::ranges::is_sorted(order));
  EXPECT_EQ(order.size(), 500u);
}

TEST_P(AnyEngine, D5AFailureIsTakenOnceByEachVariableThatHasIt) {
  Engine engine(options());
  const Handle x = engine.AddVariable(), y = engine.AddVariable(), other = engine.AddVariable();
  std::atomic<int> runs = 0;
  Push(&engine, {}, {x}, [](Handle) { return Outcome{true, Fails("first")}; });
  Push(&engine, {x}, {y}, [&] { ++runs; });
  Push(&engine, {}, {other}, [&] { ++runs; });
  const FailurePtr failure = Wait(&engine, y);
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.message(), "first");
  EXPECT_EQ(Wait(&engine, y), nullptr);
  EXPECT_EQ(Wait(&engine, other), nullptr);
  EXPECT_EQ(Wait(&engine, x), failure);
  EXPECT_EQ(WaitAll(&engine), nullptr) << "it has been taken";
  EXPECT_EQ(runs, 1);
  Push(&engine, {x}, {y}, [&] { ++runs; });
  EXPECT_EQ(Wait(&engine, y), nullptr);
  EXPECT_EQ(runs, 2);
}

TEST_P(AnyEngine, AWaitForEverythingTakesTheFirstFailureAndForgetsTheOthers) {
  Engine engine(options());
  const Handle x = engine.AddVariable(), y = engine.AddVariable();
  Push(&engine, {}, {x}, [](Handle) { return Outcome{true, Fails("first")}; });
  Push(&engine, {}, {x, y}, [] {});
  const FailurePtr failure = WaitAll(&engine);
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.message(), "first");
  EXPECT_EQ(WaitAll(&engine), nullptr);
  EXPECT_EQ(Wait(&engine, y), nullptr);
  EXPECT_EQ(engine.counters().skipped, 1u);
  EXPECT_EQ(engine.counters().failed, 1u);
}

TEST_P(AnyEngine, D7AnOperationMayEndOnAnotherThreadAndOnlyOnce) {
  Engine engine(options());
  const Handle x = engine.AddVariable();
  std::atomic<Handle> started = kNoHandle;
  std::vector<Status> second;
  std::thread other([&] {
    for (int number = 0; number < 2; ++number) {
      Handle operation = kNoHandle;
      while ((operation = started.exchange(kNoHandle)) == kNoHandle) std::this_thread::yield();
      EXPECT_TRUE(engine.Complete(operation, number == 1 ? Fails("late") : nullptr).ok());
      second.push_back(engine.Complete(operation, nullptr));
    }
  });
  for (int number = 0; number < 2; ++number) {
    Push(&engine, {}, {x}, [&](Handle operation) {
      started = operation;
      return Outcome{false, nullptr};
    });
  }
  const FailurePtr failure = Wait(&engine, x);
  other.join();
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.message(), "late");
  for (const Status& status : second) EXPECT_EQ(status.message(), "the operation has been completed before");
  // Within its function.
  Push(&engine, {}, {x}, [&](Handle operation) {
    EXPECT_TRUE(engine.Complete(operation, Fails("early")).ok());
    EXPECT_FALSE(engine.Complete(operation, nullptr).ok());
    return Outcome{false, nullptr};
  });
  EXPECT_EQ(Wait(&engine, x)->status.message(), "early");
}

// Keeps what its Run got.
class Cleanup final : public Task {
 public:
  Outcome Run(Handle, const FailurePtr& inherited) override {
    inherited_ = inherited;
    return {};
  }
  void Ended(const FailurePtr&, bool) override {}
  std::string Name() const override { return "cleanup"; }
  const FailurePtr& inherited() const { return inherited_; }

 private:
  FailurePtr inherited_;
};

TEST_P(AnyEngine, AnOperationThatAlwaysRunsGetsTheFailureAndEndsItIfItWants) {
  Cleanup cleanup;
  Engine engine(options());
  const Handle x = engine.AddVariable(), y = engine.AddVariable();
  Push(&engine, {}, {x}, [](Handle) { return Outcome{true, Fails("first")}; });
  ASSERT_TRUE(engine.Push(&cleanup, std::vector{x}, std::vector{y}, {.always_runs = true}).ok());
  EXPECT_EQ(Wait(&engine, y), nullptr);
  ASSERT_NE(cleanup.inherited(), nullptr);
  EXPECT_EQ(cleanup.inherited(), Wait(&engine, x));
}

TEST_P(AnyEngine, AnOperationMayRunInSeveralParts) {
  Engine engine(options());
  const Handle x = engine.AddVariable();
  std::atomic<Handle> started = kNoHandle;
  std::atomic<int> runs = 0;
  std::thread other([&] {
    Handle operation = kNoHandle;
    while ((operation = started.exchange(kNoHandle)) == kNoHandle) std::this_thread::yield();
    EXPECT_TRUE(engine.RunAgain(operation).ok());
  });
  Push(&engine, {}, {x}, [&](Handle operation) {
    const int run = ++runs;
    if (run == 1) started = operation;
    if (run == 2) {
      EXPECT_TRUE(engine.RunAgain(operation).ok());  // within its function
      EXPECT_FALSE(engine.RunAgain(operation).ok());
      EXPECT_FALSE(engine.Complete(operation, nullptr).ok());
    }
    return Outcome{run == 3, nullptr};
  });
  bool was_third = false;
  Push(&engine, {x}, {}, [&] { was_third = runs == 3; });
  EXPECT_EQ(Wait(&engine, x), nullptr);
  EXPECT_EQ(WaitAll(&engine), nullptr);
  other.join();
  EXPECT_TRUE(was_third);
  EXPECT_EQ(engine.counters().ended, 2u);
}

TEST_P(AnyEngine, D9AWaitWithinAnOperationIsAnError) {
  Engine engine(options());
  const Handle x = engine.AddVariable();
  StatusOr<bool> one = false, all = false;
  Push(&engine, {}, {x}, [&] {
    FailurePtr failure;
    one = engine.Wait(std::span(&x, 1), DeadlineNs(kLimitSeconds), &failure);
    all = engine.WaitAll(DeadlineNs(kLimitSeconds), &failure);
  });
  EXPECT_EQ(Wait(&engine, x), nullptr);
  EXPECT_EQ(one.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(all.status().code(), StatusCode::kInvalidArgument);
}

TEST_P(AnyEngine, AnOperationMayPushOthers) {
  Engine engine(options());
  const Handle x = engine.AddVariable();
  std::vector<int> order;
  Push(&engine, {}, {x}, [&] {
    Push(&engine, {}, {x}, [&] { order.push_back(2); });
    order.push_back(1);
  });
  EXPECT_EQ(WaitAll(&engine), nullptr);
  EXPECT_EQ(order, (std::vector{1, 2}));
}

TEST_P(AnyEngine, GoneVariablesAndQueuesAreErrorsThatTakeNothing) {
  Engine engine(options());
  const Handle x = engine.AddVariable();
  Push(&engine, {}, {x}, [] {});
  EXPECT_TRUE(engine.DeleteVariable(x).ok());
  Call call([](Handle) { return Outcome(); });
  EXPECT_EQ(engine.Push(&call, std::vector{x}, {}, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine.Push(&call, {}, {}, {.queue = 1}).message(), "there is no queue 1; the engine has 1");
  FailurePtr failure;
  EXPECT_EQ(engine.Wait(std::span(&x, 1), DeadlineNs(kLimitSeconds), &failure).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(WaitAll(&engine), nullptr);
  EXPECT_EQ(engine.counters().variables, 0u);
}

TEST(Engine, D2ReadersRunAtTheSameTimeAndWritersDoNot) {
  Door door;
  Engine engine({{4}, "test"});
  const Handle x = engine.AddVariable();
  for (int number = 0; number < 4; ++number) Push(&engine, {x}, {}, [&] { door.Pass(); });
  door.AwaitWaiting(4);
  std::atomic<bool> written = false;
  Push(&engine, {}, {x}, [&] { written = true; });
  EXPECT_FALSE(written);
  door.Open();
  EXPECT_EQ(Wait(&engine, x), nullptr);
  EXPECT_TRUE(written);
}

TEST(Engine, D8OfReadyOperationsTheHighestPriorityComesFirstAndNeverBeforeADependency) {
  Door door;
  Engine engine({{1}, "test"});
  const Handle gate = engine.AddVariable(), x = engine.AddVariable();
  std::vector<int> order;
  Push(&engine, {}, {gate}, [&] { door.Pass(); });
  door.AwaitWaiting(1);
  for (const int priority : {1, 5, 3, 5}) {
    Push(&engine, {}, {}, [&order, priority] { order.push_back(priority); }, {.priority = priority});
  }
  Push(&engine, {}, {x}, [&] { order.push_back(-1); }, {.priority = -1});
  Push(&engine, {x}, {}, [&] { order.push_back(9); }, {.priority = 9});
  door.Open();
  EXPECT_EQ(WaitAll(&engine), nullptr);
  EXPECT_EQ(order, (std::vector{5, 5, 3, 1, -1, 9}));
}

TEST(Engine, QueuesHaveThreadsOfTheirOwn) {
  Door door;
  Engine engine({{1, 1}, "test"});
  const Handle x = engine.AddVariable();
  Push(&engine, {}, {}, [&] { door.Pass(); });
  Push(&engine, {}, {x}, [] {}, {.queue = 1});
  EXPECT_EQ(Wait(&engine, x), nullptr);
  door.Open();
}

TEST(Engine, AnOperationRunsWithinPushIfItIsReadyAndShort) {
  Door door;
  Engine engine({{1}, "test"});
  const Handle gate = engine.AddVariable(), x = engine.AddVariable();
  const auto here = std::this_thread::get_id();
  std::thread::id first, second;
  Push(&engine, {}, {x}, [&] { first = std::this_thread::get_id(); }, {.at_once = true});
  EXPECT_EQ(first, here);
  Push(&engine, {}, {gate}, [&] { door.Pass(); });
  Push(&engine, {gate}, {x}, [&] { second = std::this_thread::get_id(); }, {.at_once = true});
  door.Open();
  EXPECT_EQ(WaitAll(&engine), nullptr);
  EXPECT_NE(second, here);
  EXPECT_NE(second, std::thread::id());
}

TEST(Engine, AWaitEndsAtItsDeadline) {
  Door door;
  Engine engine({{1}, "test"});
  const Handle x = engine.AddVariable();
  Push(&engine, {}, {x}, [&] { door.Pass(); });
  FailurePtr failure;
  StatusOr<bool> waited = engine.Wait(std::span(&x, 1), DeadlineNs(0.01), &failure);
  EXPECT_TRUE(waited.ok() && !*waited);
  waited = engine.WaitAll(DeadlineNs(0.01), &failure);
  EXPECT_TRUE(waited.ok() && !*waited);
  door.Open();
  EXPECT_EQ(WaitAll(&engine), nullptr);
}

TEST(Engine, D9CloseEndsWhatHasNotStartedAndNamesWhatDoesNotEnd) {
  auto door = std::make_shared<Door>();
  std::atomic<int> ran = 0, not_run = 0;
  const auto count = [&](bool it_ran) { ++(it_ran ? ran : not_run); };
  Engine engine({{1}, "test"});
  const Handle x = engine.AddVariable();
  const auto body = [door](Handle) {
    door->Pass();
    return Outcome();
  };
  ASSERT_TRUE(engine.Push(new Call(body, "stuck", count), {}, std::vector{x}, {}).ok());
  door->AwaitWaiting(1);
  ASSERT_TRUE(engine.Push(new Call(body, "next", count), {}, std::vector{x}, {}).ok());
  ASSERT_TRUE(engine.Push(new Call(body, "free", count), {}, {}, {}).ok());
  const std::vector<Engine::Pending> pending = engine.PendingOperations();
  ASSERT_EQ(pending.size(), 3u);
  EXPECT_EQ(pending[0].name, "stuck");
  EXPECT_EQ(pending[0].state, Engine::Pending::State::kRunning);
  EXPECT_EQ(pending[1].state, Engine::Pending::State::kWaiting);
  EXPECT_EQ(pending[2].state, Engine::Pending::State::kReady);
  EXPECT_EQ(engine.Close(DeadlineNs(0.01)), std::vector<std::string>{"stuck"});
  EXPECT_EQ(not_run, 1);
  Call late([](Handle) { return Outcome(); });
  EXPECT_EQ(engine.Push(&late, {}, {}, {}).code(), StatusCode::kShutDown);
  door->Open();
  while (ran + not_run < 3) std::this_thread::yield();
  EXPECT_EQ(not_run, 2);
  FailurePtr failure = Wait(&engine, x);
  ASSERT_NE(failure, nullptr);
  EXPECT_EQ(failure->status.code(), StatusCode::kShutDown);
}

// Counts how often it has ended; shared by many operations. Like all that Ended uses, it is declared before the engine,
// which calls Ended after a wait may have returned.
class Empty final : public Task {
 public:
  Outcome Run(Handle, const FailurePtr&) override { return {}; }
  void Ended(const FailurePtr&, bool) override { ++ended_; }
  std::string Name() const override { return "empty"; }
  int64_t ended() const { return ended_; }

 private:
  std::atomic<int64_t> ended_ = 0;
};

TEST(Engine, D10ASteadyStateAllocatesNothing) {
  Door door;
  Empty empty;
  Engine engine({{1}, "test"});
  const std::vector writes{engine.AddVariable()};
  const auto rounds = [&](int count) {
    for (int round = 0; round < count; ++round) {
      for (int number = 0; number < 100; ++number) ASSERT_TRUE(engine.Push(&empty, {}, writes, {}).ok());
      EXPECT_EQ(WaitAll(&engine), nullptr);
    }
  };
  // As many operations as a round has are pending at once.
  Push(&engine, {}, writes, [&] { door.Pass(); });
  for (int number = 0; number < 120; ++number) ASSERT_TRUE(engine.Push(&empty, {}, writes, {}).ok());
  door.Open();
  EXPECT_EQ(WaitAll(&engine), nullptr);
  const uint64_t before = engine.counters().allocations;
  rounds(100);
  EXPECT_EQ(engine.counters().allocations, before);
  EXPECT_EQ(engine.counters().ended, 10121u);
}

TEST(Engine, ThreadsThatPushAndWaitAtTheSameTime) {
  Engine engine({{2, 2}, "test"});
  std::vector<std::thread> programs;
  std::vector<uint64_t> sums(4, 0);
  const Handle shared = engine.AddVariable();
  for (size_t number = 0; number < sums.size(); ++number) {
    programs.emplace_back([&, number] {
      const Handle own = engine.AddVariable();
      for (uint64_t step = 1; step <= 300; ++step) {
        Push(&engine, {shared}, {own}, [&, number, step] { sums[number] += step; },
             {.queue = static_cast<uint8_t>(step % 2)});
        if (step % 50 == 0) {
          EXPECT_EQ(Wait(&engine, own), nullptr);
        }
      }
      EXPECT_EQ(Wait(&engine, own), nullptr);
      EXPECT_TRUE(engine.DeleteVariable(own).ok());
    });
  }
  for (std::thread& program : programs) program.join();
  EXPECT_EQ(sums, std::vector<uint64_t>(4, 300 * 301 / 2));
}

}  // namespace
}  // namespace horocache::dag
