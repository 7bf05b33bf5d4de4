// Steady state allocates nothing per tensor: the number of allocations of a step does not depend on how many tensors it
// has.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "test_network.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HC_COUNT_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HC_COUNT_ALLOCATIONS 0
#endif
#endif
#ifndef HC_COUNT_ALLOCATIONS
#define HC_COUNT_ALLOCATIONS 1
#endif

#if HC_COUNT_ALLOCATIONS
namespace {
std::atomic<int64_t> allocations{0};
}

// Not inlined, or the compiler sees malloc's memory freed by delete and warns.
[[gnu::noinline]] void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace horocache::control {
namespace {

// Small tensors with data, which may ride on their round, and others.
void RunSteadySteps(bool rides) {
  constexpr int kTensors = 500;
  TestHub hub(1);
  ControllerConfig config;
  BackendTraits any{.name = "any", .ops = ~0u, .device_classes = ~0u};
  any.plain_fold = rides;
  config.selector = Selector::Parse({any}, 1, "").value();
  Controller controller(config);
  const auto agreement = MakeAgreement({});
  TestChannel channel(&hub, 0);
  std::vector<wire::Request> requests(kTensors);
  for (int i = 0; i < kTensors; ++i) {
    requests[static_cast<size_t>(i)].signature =
        i % 5 == 0 ? Group("group." + std::to_string(i) + " with a long name",
                           {"member a of " + std::to_string(i), "member b of " + std::to_string(i)})
                   : Tensor("tensor with a name that does not fit into a string's own buffer " + std::to_string(i));
    requests[static_cast<size_t>(i)].signature.priority = i % 7;
  }
  Plan plan;
  int64_t now = 1;
  int64_t in_submit = 0, in_step = 0, done = 0, ridden = 0;
  const std::vector<std::byte> bytes(32);  // of a group of two
  for (int step = 0; step < 6; ++step) {
    now += kS;
    int64_t before = allocations;
    for (int i = 0; i < kTensors; ++i) {
      const auto data = std::span(bytes).first(i % 5 == 0 ? 32 : 16);
      ASSERT_TRUE(controller.Submit(static_cast<OpId>(i) + 1, requests[static_cast<size_t>(i)], now, data).ok());
    }
    in_submit = allocations - before;
    controller.SetWaiting(true, true);
    before = allocations;
    while (agreement->Step(controller, channel, now).value()) {
    }
    for (; controller.NextPlan(&plan); ridden += plan.rides() ? 1 : 0) done += static_cast<int64_t>(plan.items.size());
    in_step = allocations - before;
  }
  EXPECT_EQ(done, 6 * kTensors);
  EXPECT_EQ(ridden > 0, rides);
  EXPECT_EQ(in_submit, 0);
  EXPECT_LT(in_step, 30) << "the channel of this test allocates a little";
}

TEST(Allocation, ASteadyStepAllocatesNothingPerTensor) { RunSteadySteps(/*rides=*/false); }

TEST(Allocation, WhatRidesOnARoundAllocatesNothingPerTensor) { RunSteadySteps(/*rides=*/true); }

}  // namespace
}  // namespace horocache::control
#endif
