#include "runtime/runtime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/duration.h"
#include "runtime/in_process.h"

namespace horocache::runtime {
namespace {

class RuntimeTest : public ::testing::TestWithParam<int> {};

TEST_P(RuntimeTest, SumsStepAfterStepAndHitsTheCache) {
  const int size = GetParam();
  RunRanks(size, {}, [size](int rank, Runtime& runtime) {
    for (int step = 0; step < 50; ++step) {
      std::vector<float> tensor(100, static_cast<float>(rank + step));
      Operation* operation = Allreduce(runtime, "grad", &tensor);
      ASSERT_TRUE(runtime.Submit(operation, true).ok());
      const Status status = Finish(runtime, operation);
      ASSERT_TRUE(status.ok()) << status.ToString();
      const auto expected = static_cast<float>(size * (size - 1) / 2 + size * step);
      for (const float value : tensor) ASSERT_EQ(value, expected) << "rank " << rank << " step " << step;
    }
    const auto metrics = runtime.metrics().Snapshot();
    EXPECT_EQ(metrics.at("op_count.allreduce"), 50u);
    EXPECT_GE(metrics.at("cache_hits"), 49u);
  });
}

// The condition of a helping thread may come true, and the bell ring, just before the thread would go to sleep.
TEST(RuntimeHelp, AThreadThatHasMissedTheBellDoesNotSleep) {
  RunRanks(1, {{"spin_us", "0"}, {"yield_us", "0"}}, [](int, Runtime& runtime) {
    const auto metric = [&](const char* name) { return runtime.metrics().Snapshot().at(name); };
    for (const int look : {1, 2}) {  // it comes true right after this look of the driving thread; the third is in Sleep
      runtime.BeginOutsideWait();
      auto helped = Runtime::Helped::kBusy;
      uint64_t sleeps = 0, sleeps_after = 0;  // of the helping thread, which has the progress lock
      while (helped == Runtime::Helped::kBusy) {
        const uint64_t drives = metric("lock_taken");
        int looks = 0;
        bool come = false;
        const auto done = [&] {
          const bool is_done = come;
          if (is_done) sleeps_after = metric("sleeps");
          if (!come && metric("lock_taken") != drives && ++looks == look) {
            come = true;
            sleeps = metric("sleeps");
            runtime.WakeHelpers();
          }
          return is_done;
        };
        helped = runtime.HelpUntil(done, NowNs() + kPatienceNs);
      }
      EXPECT_EQ(helped, Runtime::Helped::kDone);
      EXPECT_EQ(sleeps_after, sleeps) << "look " << look;
    }
  });
}

TEST_P(RuntimeTest, ManyTensorsSubmittedInAnyOrderComplete) {
  const int size = GetParam();
  RunRanks(size, {{"cycle_time", "0.2"}}, [size](int rank, Runtime& runtime) {
    constexpr int kTensors = 40;
    for (int step = 0; step < 5; ++step) {
      std::vector<std::vector<float>> tensors(kTensors);
      std::vector<Operation*> operations(kTensors);
      for (int i = 0; i < kTensors; ++i) {
        const int which = (i * (2 * rank + 1) + step) % kTensors;  // each rank has its own order
        if (operations[which] != nullptr) continue;
        tensors[which].assign(static_cast<size_t>(1 + which * 37), static_cast<float>(rank + which));
        operations[which] = Allreduce(runtime, "t" + std::to_string(which), &tensors[which]);
        ASSERT_TRUE(runtime.Submit(operations[which], false).ok());
      }
      for (int i = 0; i < kTensors; ++i) {
        if (operations[i] == nullptr) {
          tensors[i].assign(static_cast<size_t>(1 + i * 37), static_cast<float>(rank + i));
          operations[i] = Allreduce(runtime, "t" + std::to_string(i), &tensors[i]);
          ASSERT_TRUE(runtime.Submit(operations[i], false).ok());
        }
      }
      for (int i = 0; i < kTensors; ++i) {
        const Status status = Finish(runtime, operations[i]);
        ASSERT_TRUE(status.ok()) << status.ToString();
        ASSERT_EQ(tensors[i].back(), static_cast<float>(size * (size - 1) / 2 + size * i))
            << "rank " << rank << " tensor " << i;
      }
    }
  });
}

TEST(RuntimeWithSets, CrossedSetsInOppositeOrdersComplete) {
  const std::vector<std::vector<int>> sets = {{0, 1, 2}, {1, 2, 3}, {0, 3}};
  RunRanks(
      4, {},
      [&sets](int rank, Runtime& runtime) {
        std::vector<uint32_t> mine;
        for (uint32_t number = 1; number <= sets.size(); ++number) {
          const std::vector<int>& ranks = sets[number - 1];
          if (std::ranges::find(ranks, rank) != ranks.end()) mine.push_back(number);
        }
        if (rank % 2 == 1) std::ranges::reverse(mine);
        for (int step = 0; step < 30; ++step) {
          std::vector<std::vector<float>> tensors;
          for (size_t i = 0; i < mine.size(); ++i) tensors.emplace_back(50, static_cast<float>(rank + step));
          std::vector<Operation*> operations;
          for (size_t i = 0; i < mine.size(); ++i) {
            operations.push_back(Allreduce(runtime, "x", &tensors[i]));
            operations.back()->process_set = mine[i];
            ASSERT_TRUE(runtime.Submit(operations.back(), false).ok());
          }
          for (size_t i = 0; i < mine.size(); ++i) {
            const Status status = Finish(runtime, operations[i]);
            ASSERT_TRUE(status.ok()) << status.ToString();
            float expected = 0;
            for (const int member : sets[mine[i] - 1]) expected += static_cast<float>(member + step);
            ASSERT_EQ(tensors[i].back(), expected) << "rank " << rank << " set " << mine[i] << " step " << step;
          }
        }
      },
      sets);
}

TEST_P(RuntimeTest, MessagesGoRoundWhileAnotherThreadReduces) {
  const int size = GetParam();
  RunRanks(size, {}, [size](int rank, Runtime& runtime) {
    std::thread reducer([&] {
      for (int step = 0; step < 20; ++step) {
        std::vector<float> tensor(100, 1.0f);
        Operation* operation = Allreduce(runtime, "sum", &tensor);
        ASSERT_TRUE(runtime.Submit(operation, true).ok());
        ASSERT_TRUE(Finish(runtime, operation).ok());
        ASSERT_EQ(tensor[0], static_cast<float>(size));
      }
    });
    for (int step = 0; step < 20; ++step) {
      const size_t count = step % 2 == 0 ? 10 : 100'000;
      std::vector<float> mine(count, static_cast<float>(rank + step)), got(count);
      const int before = (rank + size - 1) % size;
      Operation* recv = Message(runtime, wire::Op::kRecv, before, step, &got);
      Operation* send = Message(runtime, wire::Op::kSend, (rank + 1) % size, step, &mine);
      ASSERT_TRUE(runtime.Submit(recv, false).ok());
      ASSERT_TRUE(runtime.Submit(send, true).ok());
      for (Operation* operation : {recv, send}) {
        const Status status = Finish(runtime, operation);
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
      for (const float value : got) ASSERT_EQ(value, static_cast<float>(before + step)) << "rank " << rank;
    }
    reducer.join();
    EXPECT_EQ(runtime.metrics().Snapshot().at("messages_received"), 20u);
  });
}

// A rank that leaves because a third rank was lost is not the cause. A rank that waits for it learns of the third rank
// a moment later.
TEST(RuntimePairs, ARankThatLeftALostJobIsNotBlamed) {
  const auto knobs = Knobs::Parse({}, {});
  const auto arena = net::Arena::CreateOnHeap(LayoutFor(*knobs, 2));
  std::vector<std::unique_ptr<Runtime>> runtimes;
  std::thread other([&] {
    runtimes.push_back(std::move(*Runtime::Start({*knobs, {1, 2, 1, 2, 0, 1, "pair", "none"}, 0, "test", arena})));
  });
  auto runtime = Runtime::Start({*knobs, {0, 2, 0, 2, 0, 1, "pair", "none"}, 0, "test", arena});
  other.join();
  std::vector<float> got(4);
  Operation* recv = Message(**runtime, wire::Op::kRecv, 1, 0, &got);
  ASSERT_TRUE((*runtime)->Submit(recv, false).ok());
  arena->state(1).store(net::RankState::kLeftJobLost);
  EXPECT_FALSE((*runtime)->Wait(recv, NowNs() + 500 * kNsPerMs, WaitKind::kLimited)) << recv->status.ToString();
  arena->state(1).store(net::RankState::kLeft);
  EXPECT_EQ(Finish(**runtime, recv).code(), StatusCode::kShutDown);
}

TEST_P(RuntimeTest, ARankThatLeavesFailsPendingOperationsOfOtherRanks) {
  const int size = GetParam();
  if (size == 1) GTEST_SKIP() << "the test needs two ranks";
  RunRanks(size, {}, [](int rank, Runtime& runtime) {
    if (rank == 0) return;  // leaves at once
    std::vector<float> tensor(10, 1.0f);
    Operation* operation = Allreduce(runtime, "late", &tensor);
    Status status = runtime.Submit(operation, true);
    if (status.ok()) status = Finish(runtime, operation);
    EXPECT_EQ(status.code(), StatusCode::kShutDown) << status.ToString();
    EXPECT_NE(status.message().find("late"), std::string::npos) << status.message();
  });
}

TEST_P(RuntimeTest, AMismatchFailsOnAllRanksAndTheJobGoesOn) {
  const int size = GetParam();
  if (size == 1) GTEST_SKIP() << "the test needs two ranks";
  RunRanks(size, {}, [size](int rank, Runtime& runtime) {
    std::vector<float> odd(rank == size - 1 ? 7 : 6, 1.0f);
    Operation* operation = Allreduce(runtime, "odd", &odd);
    ASSERT_TRUE(runtime.Submit(operation, true).ok());
    const Status status = Finish(runtime, operation);
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.ToString();
    std::vector<float> even(6, 1.0f);
    operation = Allreduce(runtime, "even", &even);
    ASSERT_TRUE(runtime.Submit(operation, true).ok());
    EXPECT_TRUE(Finish(runtime, operation).ok());
    EXPECT_EQ(even[5], static_cast<float>(size));
  });
}

TEST_P(RuntimeTest, AGroupToReduceMayHaveSeveralElementTypes) {
  const int size = GetParam();
  RunRanks(size, {}, [size](int rank, Runtime& runtime) {
    for (int step = 0; step < 2; ++step) {  // the second step is cached
      std::vector<double> wide(4, rank);
      std::vector<int8_t> narrow(4, 1);
      Operation* operation = runtime.NewOperation();
      wire::Signature& signature = operation->request.signature;
      signature = {};
      signature.op = wire::Op::kReduce;
      signature.reduce_op = wire::ReduceOp::kSum;
      signature.root = 0;
      signature.name = "group";
      signature.tensors = {{"wide", DType::kFloat64, {4}}, {"narrow", DType::kInt8, {4}}};
      operation->tensors = {
          {reinterpret_cast<std::byte*>(wide.data()), reinterpret_cast<std::byte*>(wide.data()), 4, 4},
          {reinterpret_cast<std::byte*>(narrow.data()), reinterpret_cast<std::byte*>(narrow.data()), 4, 4}};
      ASSERT_TRUE(runtime.Submit(operation, true).ok());
      const Status status = Finish(runtime, operation);
      ASSERT_TRUE(status.ok()) << status.ToString();
      if (rank != 0) continue;
      EXPECT_EQ(wide, std::vector<double>(4, size * (size - 1) / 2));
      EXPECT_EQ(narrow, std::vector<int8_t>(4, static_cast<int8_t>(size)));
    }
  });
}

TEST_P(RuntimeTest, AWaitEndsWhenAnotherThreadConsumesTheHandle) {
  RunRanks(GetParam(), {}, [](int rank, Runtime& runtime) {
    std::vector<float> tensor(10, 1.0f);
    Operation* operation = Allreduce(runtime, "shared", &tensor);
    ASSERT_TRUE(runtime.Submit(operation, false).ok());
    const int64_t handle = operation->handle;
    const auto is_mine = [&] { return runtime.Find(handle) == operation; };
    std::thread second([&] {
      if (rank == 0) runtime.Wait(operation, kNever, WaitKind::kForGood, is_mine);
    });
    EXPECT_TRUE(Finish(runtime, operation).ok());
    second.join();
  });
}

TEST(Runtime, StopFailsTheOperationThatAnotherThreadWaitsFor) {
  const auto knobs = Knobs::Parse({}, {{"shutdown_timeout", "0.1"}});
  ASSERT_TRUE(knobs.ok()) << knobs.status().ToString();
  const auto arena = net::Arena::CreateOnHeap(LayoutFor(*knobs, 2));  // rank 1 never comes
  auto runtime = Runtime::Start({*knobs, net::Identity{0, 2, 0, 2, 0, 1, "test", "none"}, 0, "test", arena});
  ASSERT_TRUE(runtime.ok()) << runtime.status().ToString();
  std::vector<float> tensor(10, 1.0f);
  Operation* operation = Allreduce(**runtime, "lonely", &tensor);
  ASSERT_TRUE((*runtime)->Submit(operation, false).ok());
  Status status;
  std::thread waiter([&] {
    (*runtime)->Wait(operation, kNever, WaitKind::kForGood);
    status = operation->status;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  (*runtime)->Stop();
  // Only Stop can end the wait, and it ends the wait before it returns.
  EXPECT_TRUE(IsDone(*operation));
  waiter.join();
  EXPECT_EQ(status.code(), StatusCode::kShutDown) << status.ToString();
  EXPECT_NE(status.message().find("was shut down on this rank"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("lonely"), std::string::npos) << status.message();
}

INSTANTIATE_TEST_SUITE_P(Ranks, RuntimeTest, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace horocache::runtime
