// A job that repeats its steps allocates no memory: each step reuses the memory of the step before.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/allocations.h"
#include "base/clock.h"
#include "runtime/in_process.h"

namespace horocache::runtime {
namespace {

using Tensors = std::vector<std::pair<std::string, std::span<float>>>;

// Submits parts of the memory as a group, as a binding does for a repeated group.
Operation* SubmitGroup(Runtime& runtime, std::span<float> memory) {
  constexpr size_t kParts = 100;
  Operation* operation = runtime.NewGroup("a group with a name that needs memory of its own");
  wire::Signature& signature = operation->request.signature;
  GroupTemplate& prepared = operation->prepared;
  prepared.same_request = prepared.same_memory = std::exchange(prepared.filled, false);
  if (!prepared.same_request) {
    signature.op = wire::Op::kAllreduce;
    signature.name = "a group with a name that needs memory of its own";
    signature.tensors.resize(kParts);
    for (size_t i = 0; i < kParts; ++i) {
      signature.tensors[i] = {"part " + std::to_string(i), DType::kFloat32, {3}};
      auto* const bytes = reinterpret_cast<std::byte*>(memory.subspan(3 * i).data());
      operation->tensors.push_back({bytes, bytes, 3, 3});
    }
  }
  EXPECT_TRUE(runtime.Submit(operation, false).ok());
  return operation;
}

// Submits an in-place allreduce of each tensor and of a group, waits for all of them, and recycles them.
void Step(Runtime& runtime, const Tensors& tensors, std::span<float> parts, std::vector<Operation*>* operations) {
  operations->clear();
  operations->push_back(SubmitGroup(runtime, parts));
  for (const auto& [name, memory] : tensors) {
    Operation* operation = runtime.NewOperation();
    wire::Signature& signature = operation->request.signature;
    signature.op = wire::Op::kAllreduce;
    signature.name = name;
    signature.tensors.resize(1);
    signature.tensors[0].name = name;
    signature.tensors[0].shape.assign(1, static_cast<int64_t>(memory.size()));
    auto* const bytes = reinterpret_cast<std::byte*>(memory.data());
    operation->tensors.assign(1, {bytes, bytes, static_cast<int64_t>(memory.size()), 1});
    ASSERT_TRUE(runtime.Submit(operation, false).ok());
    operations->push_back(operation);
  }
  for (Operation* operation : *operations) {
    ASSERT_TRUE(runtime.Wait(operation, NowNs() + 60 * kNsPerS, WaitKind::kForGood));
    ASSERT_TRUE(operation->status.ok()) << operation->status.ToString();
    runtime.Recycle(operation);
  }
}

class SteadyStateTest : public ::testing::TestWithParam<Texts> {};

TEST_P(SteadyStateTest, AllocatesNothing) {
  if (!CountsAllocations()) GTEST_SKIP() << "this build does not count allocations";
  constexpr int kRanks = 3, kWarmUp = 200, kWindows = 10, kSteps = 20;
  std::barrier together(kRanks);
  std::vector<uint64_t> counted;
  RunRanks(kRanks, GetParam(), [&](int rank, Runtime& runtime) {
    std::vector<float> tiny(4), small(1000), large(100000), parts(300);
    const std::shared_ptr<std::byte> memory = runtime.Allocate(400000);
    const Tensors tensors = {{"tiny", tiny},
                             {"small, with a name that needs memory of its own", small},
                             {"large", large},
                             {"shared", {reinterpret_cast<float*>(memory.get()), 100000}}};
    std::vector<Operation*> operations;
    for (int step = 0; step < kWarmUp; ++step) Step(runtime, tensors, parts, &operations);
    for (int window = 0; window < kWindows; ++window) {
      together.arrive_and_wait();
      const uint64_t before = Allocations();
      together.arrive_and_wait();
      for (int step = 0; step < kSteps; ++step) Step(runtime, tensors, parts, &operations);
      together.arrive_and_wait();
      const uint64_t after = Allocations();
      together.arrive_and_wait();
      if (rank == 0) counted.push_back(after - before);
    }
  });
  // If the machine stops a rank for long, the other ranks look for the reason, which is outside the steady state.
  EXPECT_EQ(*std::ranges::min_element(counted), 0u);
}

INSTANTIATE_TEST_SUITE_P(Modes, SteadyStateTest,
                         ::testing::Values(Texts{}, Texts{{"waiter_drives", "0"}}, Texts{{"inline_max", "0"}},
                                           Texts{{"cycle_mode", "tick"}}));

}  // namespace
}  // namespace horocache::runtime
