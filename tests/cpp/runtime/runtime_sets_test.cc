// Process sets that come and go while the job runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "in_process.h"
#include "runtime/runtime.h"

namespace horocache::runtime {
namespace {

Status FinishHandle(Runtime& runtime, int64_t handle) { return Finish(runtime, runtime.Find(handle)); }

Status AddSet(Runtime& runtime, const std::vector<int>& ranks, uint32_t* number) {
  int64_t handle = -1;
  HC_RETURN_IF_ERROR(runtime.ProposeSet(ranks, number, &handle));
  HC_RETURN_IF_ERROR(FinishHandle(runtime, handle));
  return runtime.EnterSet(*number);
}

Status RemoveSet(Runtime& runtime, uint32_t number) {
  int64_t handle = -1;
  HC_RETURN_IF_ERROR(runtime.ProposeRemoval(number, &handle));
  HC_RETURN_IF_ERROR(FinishHandle(runtime, handle));
  return runtime.LeaveSet(number);
}

Status SumOfOnes(Runtime& runtime, uint32_t set, float* sum) {
  std::vector<float> ones(100, 1.0f);
  Operation* operation = Allreduce(runtime, "ones", &ones);
  operation->process_set = set;
  HC_RETURN_IF_ERROR(runtime.Submit(operation, true));
  Status status = Finish(runtime, operation);
  *sum = ones.back();
  return status;
}

bool Has(const std::vector<int>& ranks, int rank) { return std::ranges::find(ranks, rank) != ranks.end(); }

// A job's identity names its sockets, so each test has its own.
void RunJob(const std::string& job, int size, const std::function<void(int, Runtime&)>& body) {
  RunRanks(size, {{"start_timeout", "20"}}, body, {}, "test-sets." + std::to_string(getpid()) + "." + job);
}

TEST(RuntimeSets, ComeAndGoWhileAnotherThreadReduces) {
  const std::vector<std::vector<int>> wanted = {{0, 1}, {1, 2}, {2}, {0, 2}};
  RunJob("come-and-go", 3, [&](int rank, Runtime& runtime) {
    std::jthread reducer([&] {
      for (int step = 0; step < 200; ++step) {
        std::vector<float> tensor(10, 1.0f);
        Operation* operation = Allreduce(runtime, "sum", &tensor);
        ASSERT_TRUE(runtime.Submit(operation, true).ok());
        ASSERT_TRUE(Finish(runtime, operation).ok());
        ASSERT_EQ(tensor[0], 3.0f);
      }
    });
    uint32_t expected = 0;
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<uint32_t> numbers;
      for (const std::vector<int>& ranks : wanted) {
        uint32_t number = 0;
        const Status added = AddSet(runtime, ranks, &number);
        ASSERT_TRUE(added.ok()) << added.ToString();
        ASSERT_EQ(number, ++expected);
        numbers.push_back(number);
        float sum = 0;
        const Status status = SumOfOnes(runtime, number, &sum);
        ASSERT_EQ(status.ok(), Has(ranks, rank)) << status.ToString();
        if (status.ok()) {
          ASSERT_EQ(sum, static_cast<float>(ranks.size()));
        }
      }
      const uint64_t operations = runtime.metrics().Snapshot().at("operations");
      for (const uint32_t number : numbers) {
        const Status removed = RemoveSet(runtime, number);
        ASSERT_TRUE(removed.ok()) << removed.ToString();
        float sum = 0;
        EXPECT_EQ(SumOfOnes(runtime, number, &sum).code(), StatusCode::kInvalidArgument);
      }
      EXPECT_GE(runtime.metrics().Snapshot().at("operations"), operations);
    }
    reducer.join();
  });
}

TEST(RuntimeSets, ThatRanksDisagreeAboutAreNotMadeAndTheNumberIsFree) {
  RunJob("disagree", 3, [](int rank, Runtime& runtime) {
    uint32_t number = 0;
    const Status refused = AddSet(runtime, rank == 1 ? std::vector<int>{1, 2} : std::vector<int>{0, 1}, &number);
    EXPECT_EQ(refused.code(), StatusCode::kMismatch);
    // Rank 1 and one of the others.
    for (const char* words : {"'process_set.1.add': rank ", "rank 1 submitted the ranks [1, 2]", "the ranks [0, 1]",
                              "Add the same process sets on all ranks"}) {
      EXPECT_NE(refused.message().find(words), std::string::npos) << refused.message();
    }
    runtime.DropSet(number);
    const Status added = AddSet(runtime, {0, 1}, &number);
    ASSERT_TRUE(added.ok()) << added.ToString();
    EXPECT_EQ(number, 1u);
    EXPECT_EQ(AddSet(runtime, {0, 1}, &number).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(RemoveSet(runtime, 7).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(RemoveSet(runtime, 0).code(), StatusCode::kInvalidArgument);
    float sum = 0;
    EXPECT_TRUE(SumOfOnes(runtime, 0, &sum).ok());  // who has left is not waited for
  });
}

TEST(RuntimeSets, WhatIsPendingInOneThatIsRemovedOrDroppedFails) {
  RunJob("pending", 3, [](int rank, Runtime& runtime) {
    for (const bool drop : {false, true}) {
      uint32_t number = 0;
      ASSERT_TRUE(AddSet(runtime, {0, 1}, &number).ok());
      std::vector<float> tensor(10, 1.0f);
      Operation* operation = nullptr;
      if (rank == 0) {
        operation = Allreduce(runtime, "alone", &tensor);
        operation->process_set = number;
        ASSERT_TRUE(runtime.Submit(operation, false).ok());
      }
      if (drop) {
        float sum = 0;
        ASSERT_TRUE(SumOfOnes(runtime, 0, &sum).ok());  // nobody drops it before it is there
        runtime.DropSet(number);
      } else {
        ASSERT_TRUE(RemoveSet(runtime, number).ok());
      }
      if (operation == nullptr) continue;
      const Status status = Finish(runtime, operation);
      EXPECT_EQ(status.code(), StatusCode::kShutDown) << status.ToString();
      EXPECT_NE(status.message().find("'alone'"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("process set " + std::to_string(number)), std::string::npos) << status.message();
    }
  });
}

TEST(RuntimeSets, AMeetingEndsWhenTheCallerHasHadEnough) {
  RunJob("enough", 3, [](int rank, Runtime& runtime) {
    uint32_t number = 0;
    int64_t handle = -1;
    ASSERT_TRUE(runtime.ProposeSet({0, 1}, &number, &handle).ok());
    ASSERT_TRUE(FinishHandle(runtime, handle).ok());
    if (rank == 0) {  // rank 1 does not come
      const Status status = runtime.EnterSet(number, [] { return false; });
      EXPECT_EQ(status.code(), StatusCode::kAborted) << status.ToString();
      EXPECT_NE(status.message().find("adding process set 1 (ranks 0, 1) was interrupted"), std::string::npos);
    }
    runtime.DropSet(number);
  });
}

}  // namespace
}  // namespace horocache::runtime
