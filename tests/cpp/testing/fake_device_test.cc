// The fake device: streams and events, and a backend that honours them.
#include "testing/fake_device.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/clock.h"
#include "data/numbers.h"
#include "data/ranks.h"

namespace horocache::data {
namespace {

using horocache::testing::FakeDevice;
using horocache::testing::FakeStream;
using testing::RankData;

void WaitFor(Event* event) {
  while (!event->Ready()) std::this_thread::yield();
}

TEST(FakeStreamTest, RunsWorkInOrderAndCompletesEvents) {
  auto device = std::make_shared<FakeDevice>();
  FakeStream stream(device);
  std::vector<int> order;
  for (int i = 0; i < 10; ++i) stream.Enqueue([&order, i] { order.push_back(i); }, i == 0 ? 5 * kNsPerMs : 0);
  const auto event = stream.Record();
  WaitFor(event.get());
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST(FakeStreamTest, DoesNotWaitForOtherStreams) {
  auto device = std::make_shared<FakeDevice>();
  FakeStream slow(device), fast(device);
  slow.Enqueue([] {}, 3600 * kNsPerS);
  const auto never = slow.Record();
  const auto soon = fast.Record();
  WaitFor(soon.get());
  EXPECT_FALSE(never->Ready());
}

TEST(FakeStreamTest, DropsWorkThatHasNotBegunWhenDestroyed) {
  auto device = std::make_shared<FakeDevice>();
  std::atomic<int> ran{0};
  {
    FakeStream stream(device);
    stream.Enqueue([&ran] { ++ran; }, 3600 * kNsPerS);
  }
  FakeStream other(device);
  WaitFor(other.Record().get());
  EXPECT_EQ(ran.load(), 0);
}

TEST(FakeStreamTest, NotifiesAfterEveryPieceOfWork) {
  std::atomic<int> notified{0};
  auto device = std::make_shared<FakeDevice>(0, [&notified] { ++notified; });
  FakeStream stream(device);
  stream.Enqueue([] {});
  WaitFor(stream.Record().get());
  device.reset();
  while (notified.load() < 2) std::this_thread::yield();
}

TEST(FakeDeviceBackendTest, WaitsForTheEventOfATensorThatIsStillBeingWritten) {
  testing::Ranks ranks(2);
  auto device = std::make_shared<FakeDevice>();
  FakeStream stream(device);
  std::vector<RankData> data(2);
  std::vector<std::unique_ptr<Event>> events;
  std::vector<std::unique_ptr<CollectiveTask>> operations;
  std::atomic<bool> open{false};
  for (size_t r = 0; r < 2; ++r) {
    data[r].collective.device_class = wire::DeviceClass::kFake;
    data[r].inputs.push_back(testing::SmallNumbers(DType::kFloat32, 1000, 99));
    testing::Bind(&data[r]);
    stream.Enqueue([&input = data[r].inputs[0], &open, r] {
      while (!open.load()) std::this_thread::yield();
      std::fill(reinterpret_cast<float*>(input.data()), reinterpret_cast<float*>(input.data()) + 1000,
                static_cast<float>(r + 1));
    });
    events.push_back(stream.Record());
    data[r].collective.ready = events.back().get();
    operations.push_back(ranks.backend(static_cast<int>(r), "fakedevice").Start(data[r].collective));
  }
  for (int i = 0; i < 1000; ++i) {
    for (auto& operation : operations) ASSERT_FALSE(operation->Test()) << "did not wait for the event";
  }
  open.store(true);
  while (!operations[0]->Test() || !operations[1]->Test()) {
    operations[1]->Test();
    std::this_thread::yield();
  }
  for (const RankData& mine : data) {
    for (size_t i = 0; i < 1000; ++i) ASSERT_EQ(testing::Read<float>(mine.inputs[0], i), 3.0f);
  }
}

TEST(FakeDeviceBackendTest, CompletesLaterByTheDelay) {
  testing::Ranks ranks(1, {}, testing::Ranks::kAreaBytes, {}, 10 * kNsPerMs);
  std::vector<RankData> data(1);
  data[0].collective.device_class = wire::DeviceClass::kFake;
  data[0].inputs.push_back(testing::SmallNumbers(DType::kInt32, 10, 1));
  testing::Bind(&data[0]);
  const int64_t begin = NowNs();
  auto operation = ranks.backend(0, "fakedevice").Start(data[0].collective);
  EXPECT_FALSE(operation->Test());
  EXPECT_TRUE(testing::Finish(operation.get()).ok());
  EXPECT_GE(NowNs() - begin, 4 * 10 * kNsPerMs) << "two copies and two events, each not before the delay";
  EXPECT_GT(ranks.rings(0), 0u) << "the device wakes the rank that polls its events";
}

TEST(FakeDeviceBackendTest, MayBeDestroyedWithWorkUnderWay) {
  testing::Ranks ranks(1, {}, testing::Ranks::kAreaBytes, {}, 3600 * kNsPerS);
  std::vector<RankData> data(1);
  data[0].collective.device_class = wire::DeviceClass::kFake;
  data[0].inputs.push_back(testing::SmallNumbers(DType::kInt32, 10, 1));
  testing::Bind(&data[0]);
  auto operation = ranks.backend(0, "fakedevice").Start(data[0].collective);
  EXPECT_FALSE(operation->Test());
  operation.reset();
}

TEST(FakeDeviceBackendTest, IsBrokenAfterAFailedAllocation) {
  testing::Ranks ranks(1);
  Backend& backend = ranks.backend(0, "fakedevice");
  std::byte never_touched[4];
  Collective collective;
  collective.device_class = wire::DeviceClass::kFake;
  collective.segments.push_back({never_touched, never_touched, int64_t{1} << 46});
  EXPECT_EQ(testing::Finish(backend.Start(collective).get()).code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(backend.broken().code(), StatusCode::kOutOfMemory);
  collective.segments[0].count = 1;
  EXPECT_EQ(testing::Finish(backend.Start(collective).get()).code(), StatusCode::kOutOfMemory);
}

TEST(FakeDeviceBackendTest, RefusesHostTensors) {
  testing::Ranks ranks(1);
  EXPECT_EQ(ranks.backend(0, "fakedevice").Supports({}).code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace horocache::data
