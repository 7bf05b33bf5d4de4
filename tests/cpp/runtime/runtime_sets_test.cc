// Process sets that come and go while the job runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "runtime/in_process.h"
#include "runtime/runtime.h"

namespace horocache::runtime {
namespace {

Status FinishHandle(Runtime& runtime, int64_t handle) { return Finish(runtime, runtime.Find(handle)); }

Status AddSet(Runtime& runtime, const std::vector<int>& ranks, uint32_t* number) {
  *number = runtime.NextSet();
  int64_t handle = -1;
  HC_RETURN_IF_ERROR(runtime.ProposeSet(*number, ranks, &handle));
  HC_RETURN_IF_ERROR(FinishHandle(runtime, handle));
  HC_RETURN_IF_ERROR(runtime.ConnectSet(*number));
  return runtime.OpenSet(*number);
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

// The name of the job is part of the names of its sockets, so each test needs a name of its own.
void RunJob(const std::string& job, int size, const std::function<void(int, Runtime&)>& body) {
  RunRanks(size, {{"start_timeout", "20"}}, body, {}, "test-sets." + std::to_string(getpid()) + "." + job);
}

// Rank 0 does not learn of set 7. Set 5 comes second, with a lower number, and has the ranks of the global set.
TEST(RuntimeSets, DeclaredSetsNeedTheirMembersOnly) {
  RunJob("members-alone", 3, [](int rank, Runtime& runtime) {
    const auto make = [&](uint32_t number, std::vector<int> ranks) {
      ASSERT_TRUE(runtime.DeclareSet(number, std::move(ranks)).ok());
      ASSERT_TRUE(runtime.ConnectSet(number).ok());
      ASSERT_TRUE(runtime.OpenSet(number).ok());
    };
    const auto sum = [&](uint32_t number) {
      float found = -1;
      EXPECT_TRUE(SumOfOnes(runtime, number, &found).ok());
      return found;
    };
    if (rank > 0) make(7, {1, 2});
    make(5, {0, 1, 2});
    EXPECT_EQ(sum(5), 3.0f);
    if (rank > 0) {
      EXPECT_EQ(sum(7), 2.0f);
      EXPECT_TRUE(runtime.LeaveSet(7).ok());
    }
    EXPECT_EQ(sum(0), 3.0f);
    EXPECT_TRUE(runtime.LeaveSet(5).ok());
  });
}

TEST(RuntimeSets, AreAddedAndRemovedWhileAnotherThreadReduces) {
  const std::vector<std::vector<int>> wanted = {{0, 1}, {1, 2}, {2}, {0, 2}};
  RunJob("come-and-go", 3, [&](int rank, Runtime& runtime) {
    std::atomic<bool> over{false};
    std::jthread reducer([&] {
      for (float all_over = 0; all_over < 3;) {  // until all ranks are over in the same step
        std::vector<float> tensor = {1.0f, over ? 1.0f : 0.0f};
        Operation* operation = Allreduce(runtime, "sum", &tensor);
        ASSERT_TRUE(runtime.Submit(operation, true).ok());
        ASSERT_TRUE(Finish(runtime, operation).ok());
        ASSERT_EQ(tensor[0], 3.0f);
        all_over = tensor[1];
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
    over = true;
  });
}

TEST(RuntimeSets, DifferentProposalsAddNoSet) {
  RunJob("disagree", 3, [](int rank, Runtime& runtime) {
    uint32_t number = 0;
    const Status refused = AddSet(runtime, rank == 1 ? std::vector<int>{1, 2} : std::vector<int>{0, 1}, &number);
    EXPECT_EQ(refused.code(), StatusCode::kMismatch);
    // The message names rank 1 and one of the other ranks.
    for (const char* words : {"'process_set.1.add': rank ", "rank 1 submitted the ranks [1, 2]", "the ranks [0, 1]",
                              "Add the same process sets on all ranks"}) {
      EXPECT_NE(refused.message().find(words), std::string::npos) << refused.message();
    }
    ASSERT_TRUE(runtime.DropSet(number).ok());
    const Status added = AddSet(runtime, {0, 1}, &number);
    ASSERT_TRUE(added.ok()) << added.ToString();
    EXPECT_EQ(number, 2u);
    EXPECT_EQ(AddSet(runtime, {0, 1}, &number).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(RemoveSet(runtime, 7).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(RemoveSet(runtime, 0).code(), StatusCode::kInvalidArgument);
    for (const uint32_t wrong : {0u, 1u, 7u}) {
      for (const Status& refused :
           {runtime.ConnectSet(wrong), runtime.OpenSet(wrong), runtime.DropSet(wrong), runtime.LeaveSet(wrong)}) {
        EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << wrong;
      }
    }
    float sum = 0;
    EXPECT_TRUE(SumOfOnes(runtime, 0, &sum).ok());  // no rank leaves the job before this sum
  });
}

TEST(RuntimeSets, RemovingOrDroppingASetFailsItsPendingOperations) {
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
        ASSERT_TRUE(SumOfOnes(runtime, 0, &sum).ok());  // no rank drops the set before both members have it
        ASSERT_TRUE(runtime.DropSet(number).ok());
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

TEST(RuntimeSets, ARankThatDropsASetEndsItForTheOthers) {
  RunJob("drops", 3, [](int rank, Runtime& runtime) {
    uint32_t number = 0;
    ASSERT_TRUE(AddSet(runtime, {0, 1}, &number).ok());
    float sum = 0;
    ASSERT_TRUE(SumOfOnes(runtime, 0, &sum).ok());
    if (rank == 0) {
      ASSERT_TRUE(runtime.DropSet(number).ok());
    }
    if (rank == 1) {
      const Status status = SumOfOnes(runtime, number, &sum);
      EXPECT_EQ(status.code(), StatusCode::kShutDown);
      EXPECT_NE(status.message().find("rank 0 has left process set 1"), std::string::npos) << status.message();
    }
    EXPECT_TRUE(SumOfOnes(runtime, 0, &sum).ok());  // the job goes on
  });
}

TEST(RuntimeSets, RemovingASetFailsItsPendingMessages) {
  RunJob("messages", 3, [](int rank, Runtime& runtime) {
    uint32_t number = 0;
    ASSERT_TRUE(AddSet(runtime, {0, 1}, &number).ok());
    std::vector<float> small(4), large(100'000);
    std::vector<Operation*> operations;
    if (rank == 0) {  // rank 1 posts no matching messages
      operations = {Message(runtime, wire::Op::kSend, 1, 1, &large), Message(runtime, wire::Op::kRecv, 1, 2, &small),
                    Message(runtime, wire::Op::kSend, 1, 3, &small)};
    }
    for (Operation* operation : operations) {
      operation->process_set = number;
      ASSERT_TRUE(runtime.Submit(operation, false).ok());
    }
    ASSERT_TRUE(RemoveSet(runtime, number).ok());
    for (Operation* operation : operations) {
      const bool eager = operation->tag == 3;  // it was sent at once
      const Status status = Finish(runtime, operation);
      EXPECT_EQ(status.code(), eager ? StatusCode::kOk : StatusCode::kShutDown) << status.ToString();
    }
  });
}

TEST(RuntimeSets, ConnectSetCanBeInterrupted) {
  RunJob("enough", 3, [](int rank, Runtime& runtime) {
    uint32_t number = runtime.NextSet();
    int64_t handle = -1;
    ASSERT_TRUE(runtime.ProposeSet(number, {0, 1}, &handle).ok());
    ASSERT_TRUE(FinishHandle(runtime, handle).ok());
    float sum = 0;
    if (rank == 0) {  // rank 1 does not come
      const Status status = runtime.ConnectSet(number, [] { return false; });
      EXPECT_EQ(status.code(), StatusCode::kAborted) << status.ToString();
      EXPECT_NE(status.message().find("adding process set 1 (ranks 0, 1) was interrupted"), std::string::npos);
    }
    ASSERT_TRUE(runtime.DropSet(number).ok());
    ASSERT_TRUE(SumOfOnes(runtime, 0, &sum).ok());
  });
}

TEST(RuntimeSets, TheNextChangeCompletesAnInterruptedRemoval) {
  RunJob("interrupted", 3, [](int rank, Runtime& runtime) {
    float sum = 0;
    uint32_t number = 0;
    ASSERT_TRUE(AddSet(runtime, {0, 1}, &number).ok());
    int64_t handle = -1;
    ASSERT_TRUE(runtime.ProposeRemoval(number, &handle).ok());
    ASSERT_TRUE(FinishHandle(runtime, handle).ok());
    ASSERT_TRUE(SumOfOnes(runtime, 0, &sum).ok());
    if (rank == 0) {
      // Only the wait can be interrupted: rank 0 leaves the set in any case, so that rank 1 can leave it, too.
      const Status status = runtime.LeaveSet(number, [] { return false; });
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kAborted) << status.ToString();
    } else {
      EXPECT_TRUE(runtime.LeaveSet(number).ok());
    }
    ASSERT_TRUE(SumOfOnes(runtime, 0, &sum).ok());
    const Status added = AddSet(runtime, {0, 1}, &number);
    ASSERT_TRUE(added.ok()) << added.ToString();
    EXPECT_EQ(SumOfOnes(runtime, number, &sum).ok(), rank < 2);
    ASSERT_TRUE(SumOfOnes(runtime, 0, &sum).ok());
  });
}

}  // namespace
}  // namespace horocache::runtime
