// Memory runs out at one allocation after another while ranks work. No rank crashes or hangs, and all learn of it.
#include <gtest/gtest.h>

#include <array>
#include <barrier>

#include "base/allocations.h"
#include "runtime/in_process.h"

namespace horocache::runtime {
namespace {

constexpr int kRanks = 3, kSteps = 8;

// The parameter is the knob waiter_drives: whether waiting threads drive their rank.
class OutOfMemory : public ::testing::TestWithParam<const char*> {
 protected:
  using Outcomes = std::array<Status, kRanks>;

  // Returns the first error of each rank when, after `after` allocations of the ranks' threads, the next `failures`
  // allocations fail.
  static Outcomes Run(int64_t after, int64_t failures) {
    const AllocationShield shield;
    Outcomes outcomes;
    std::barrier<> together(kRanks);
    RunRanks(kRanks, {{"waiter_drives", GetParam()}, {"log_level", "fatal"}, {"shutdown_timeout", "1"}},
             [&](int rank, Runtime& runtime) {
               const AllocationShield own_shield;
               std::vector<float> tensor(100, 1.0f);
               Status& outcome = outcomes[static_cast<size_t>(rank)];
               outcome = Do(runtime, Allreduce(runtime, "warm", &tensor));
               together.arrive_and_wait();
               if (rank == 0) FailAllocations(after, failures);
               together.arrive_and_wait();
               for (int step = 0; step < kSteps && outcome.ok(); ++step) outcome = Step(runtime, rank, step);
               // As Python does when an exception ends the program.
               if (!outcome.ok()) runtime.Abort(outcome.message());
               together.arrive_and_wait();
               FailAllocations(0, 0);
               together.arrive_and_wait();
             });
    return outcomes;
  }

  static Status Step(Runtime& runtime, int rank, int step) {
    std::vector<float> tensor(100, 1.0f), got(100);
    Status status = Do(runtime, Allreduce(runtime, std::string(100, 'x') + std::to_string(step), &tensor));
    if (status.ok() && tensor[99] != kRanks) return {StatusCode::kInternal, "a wrong sum"};
    if (!status.ok() || step % 2 == 0) return status;
    Operation* const receive = Message(runtime, wire::Op::kRecv, (rank + kRanks - 1) % kRanks, step, &got);
    const bool receives = Submit(runtime, receive, &status);
    const Status sent = Do(runtime, Message(runtime, wire::Op::kSend, (rank + 1) % kRanks, step, &tensor));
    if (!sent.ok()) runtime.Abort(sent.message());  // or the receive would wait for ever
    const Status received = receives ? End(runtime, receive) : status;
    return sent.ok() ? received : sent;
  }

  static Status Do(Runtime& runtime, Operation* operation) {
    Status status;
    return Submit(runtime, operation, &status) ? End(runtime, operation) : status;
  }

  static bool Submit(Runtime& runtime, Operation* operation, Status* status) {
    const AllocationShield exposed(false);
    *status = runtime.Submit(operation, true);
    return status->ok();
  }

  static Status End(Runtime& runtime, Operation* operation) {
    bool done = false;
    {
      const AllocationShield exposed(false);
      done = runtime.Wait(operation, NowNs() + kPatienceNs, WaitKind::kForGood);
    }
    if (!done) return {StatusCode::kInternal, "never finished"};
    Status status = operation->status;
    runtime.Recycle(operation);
    return status;
  }
};

TEST_P(OutOfMemory, AtAnyAllocationIsAnErrorOnEveryRank) {
  if (!CountsAllocations()) GTEST_SKIP() << "this build has an allocator of its own";
  int met = 0;
  for (const int64_t failures : {int64_t{1}, int64_t{1} << 40}) {
    for (int64_t after = 0; after < 400; after += 1 + after / 6) {
      const Outcomes outcomes = Run(after, failures);
      const auto failed = [&](StatusCode code) {
        return std::ranges::count_if(outcomes, [code](const Status& status) { return status.code() == code; });
      };
      const auto well = failed(StatusCode::kOk), without = failed(StatusCode::kOutOfMemory);
      const auto aborted = failed(StatusCode::kAborted);
      for (const Status& outcome : outcomes)
        EXPECT_TRUE(well == kRanks || (well == 0 && without >= 1 && without + aborted == kRanks))
            << outcome.ToString() << " after " << after << ", " << failures << " failures";
      met += without > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(met, 20) << "there are fewer allocations than this test expects";
}

INSTANTIATE_TEST_SUITE_P(WaiterDrives, OutOfMemory, ::testing::Values("1", "0"));

TEST(OutOfMemoryAt, TheReasonNamesTheRankOnEveryRank) {
  for (const char* place : {"start", "data", "done"}) {
    RunRanks(3, {{"fault", std::string(place) + ":1:2=memory"}}, [&](int rank, Runtime& runtime) {
      std::vector<float> tensor(10'000, 1.0f);
      Status status;
      for (int step = 0; step < 10'000 && status.ok(); ++step) {  // the number of passes depends on the other ranks
        Operation* operation = Allreduce(runtime, "x", &tensor);
        ASSERT_TRUE(runtime.Submit(operation, true).ok());
        status = Finish(runtime, operation);
      }
      EXPECT_EQ(status.code(), rank == 1 ? StatusCode::kOutOfMemory : StatusCode::kAborted) << status.ToString();
      EXPECT_NE(status.message().find("rank 1 has run out of memory"), std::string::npos) << status.message();
      // Later operations fail with the same code.
      Operation* late = Allreduce(runtime, "late", &tensor);
      status = runtime.Submit(late, true);
      if (status.ok()) status = Finish(runtime, late);
      EXPECT_EQ(status.code(), rank == 1 ? StatusCode::kOutOfMemory : StatusCode::kAborted) << status.ToString();
    });
  }
}

}  // namespace
}  // namespace horocache::runtime
