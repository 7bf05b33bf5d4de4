// Streams, events and pinned memory of a device.
#include "cuda/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "cuda/fake_driver.h"

namespace horocache::cuda {
namespace {

using testing::DeviceMemory;
using testing::FakeDriver;
using testing::Good;
using testing::HeldStream;

void WaitFor(const Event& event) {
  while (!Good(event.Happened())) {
  }
}

TEST(DevicesTest, OpenADeviceOnce) {
  Devices devices(HC_FAKE_CUDA);
  const auto device = Good(devices.Get(0));
  EXPECT_EQ(Good(devices.Get(0)), device);
  EXPECT_EQ(device->number(), 0);
}

TEST(DevicesTest, ADeviceThatDoesNotExistIsAnErrorWithTheNumberOfDevices) {
  Devices devices(HC_FAKE_CUDA);
  const auto device = devices.Get(7);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().message(), "there is no CUDA device 7: this process has 1");
}

TEST(DevicesTest, CloseWithoutWaitingForAStreamThatHangs) {
  const FakeDriver& fake = FakeDriver::Get();
  const uint64_t released = fake.Calls("cuDevicePrimaryCtxRelease_v2");
  {
    HeldStream held;
    {
      Devices devices(HC_FAKE_CUDA);
      const auto device = Good(devices.Get(0));
      const Device::Scope scope(*device);
      Good(PinnedMemory::Make(device));  // whose release waits until the device has no work
    }
    const Device::Scope scope(*fake.device());
    EXPECT_EQ(fake.device()->driver().StreamQuery(held.handle()), kNotReady);
    EXPECT_EQ(fake.Calls("cuDevicePrimaryCtxRelease_v2"), released) << "nothing was waited for";
  }
  while (fake.Calls("cuDevicePrimaryCtxRelease_v2") == released) std::this_thread::yield();  // the abandoned thread
}

TEST(DevicesTest, LeaveAnEventThatAStreamHasNotComeTo) {
  const FakeDriver& fake = FakeDriver::Get();
  const uint64_t destroyed = fake.Calls("cuEventDestroy_v2");
  HeldStream held;
  {
    Devices devices(HC_FAKE_CUDA);
    const auto device = Good(devices.Get(0));
    const Device::Scope scope(*device);
    Event behind = Good(Event::Make(device));
    const Event unused = Good(Event::Make(device));
    ASSERT_TRUE(behind.Record(held.handle()).ok());
  }
  EXPECT_EQ(fake.Calls("cuEventDestroy_v2"), destroyed + 1) << "the fake ends the process where a pending one is";
}

TEST(DeviceTest, AScopeMakesTheContextCurrentAndGivesBackTheOneBefore) {
  const auto device = FakeDriver::Get().device();
  const auto current = [] {
    Context context = nullptr;
    EXPECT_EQ(FakeDriver::Get().Function<Code(Context*)>("cuCtxGetCurrent")(&context), kSuccess);
    return context;
  };
  EXPECT_EQ(current(), nullptr);
  {
    const Device::Scope scope(*device);
    EXPECT_TRUE(scope.status().ok());
    EXPECT_NE(current(), nullptr);
  }
  EXPECT_EQ(current(), nullptr);
}

TEST(StreamTest, CopiesBothWaysInOrder) {
  const auto device = FakeDriver::Get().device();
  DeviceMemory memory(1000);
  const Device::Scope scope(*device);
  const auto stream = Good(Stream::Make(device));
  const auto pinned = Good(PinnedMemory::Make(device));
  Event event = Good(Event::Make(device));
  std::memset(pinned->data(), 7, 1000);
  ASSERT_TRUE(stream->CopyFromHost(memory.data(), pinned->data(), 1000).ok());
  ASSERT_TRUE(stream->CopyToHost(pinned->data() + 2000, memory.data(), 1000).ok());
  ASSERT_TRUE(stream->Record(&event).ok());
  WaitFor(event);
  EXPECT_EQ(std::memcmp(pinned->data(), pinned->data() + 2000, 1000), 0);
  EXPECT_TRUE(stream->idle());
}

TEST(EventTest, HappensWhenItsStreamHasComeToIt) {
  const auto device = FakeDriver::Get().device();
  HeldStream held;
  const Device::Scope scope(*device);
  Event event = Good(Event::Make(device));
  ASSERT_TRUE(event.Record(held.handle()).ok());
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(Good(event.Happened()));
  held.Release();
  WaitFor(event);
}

TEST(EventTest, IsUsedAgain) {
  const auto device = FakeDriver::Get().device();
  const Device::Scope scope(*device);
  {
    const Event event = Good(Event::Make(device));
  }
  const uint64_t made = FakeDriver::Get().Calls("cuEventCreate");
  for (int i = 0; i < 10; ++i) const Event event = Good(Event::Make(device));
  EXPECT_EQ(FakeDriver::Get().Calls("cuEventCreate"), made);
}

TEST(EventTest, MayBeAskedWhileAThreadCapturesAGraph) {
  const auto device = FakeDriver::Get().device();
  const auto begin = FakeDriver::Get().Function<Code(StreamHandle, int)>("cuStreamBeginCapture_v2");
  const auto end = FakeDriver::Get().Function<Code(StreamHandle, void**)>("cuStreamEndCapture");
  StreamHandle captured = nullptr;
  Event event;
  {
    const Device::Scope scope(*device);
    ASSERT_EQ(device->driver().StreamCreateWithPriority(&captured, kStreamNonBlocking, 0), kSuccess);
    event = Good(Event::Make(device));
    const auto stream = Good(Stream::Make(device));
    ASSERT_TRUE(stream->Record(&event).ok());
  }
  constexpr int kGlobal = 0;  // refuses unsafe calls of every thread
  ASSERT_EQ(begin(captured, kGlobal), kSuccess);
  std::thread([&] {
    const Device::Scope scope(*device);
    WaitFor(event);
    EXPECT_TRUE(PinnedMemory::Make(device).ok());
  }).join();
  void* graph = nullptr;
  EXPECT_EQ(end(captured, &graph), kSuccess) << "the capture was broken";
}

TEST(PinnedMemoryTest, IsUsedAgain) {
  const auto device = FakeDriver::Get().device();
  const Device::Scope scope(*device);
  const std::byte* const first = Good(PinnedMemory::Make(device))->data();
  EXPECT_EQ(Good(PinnedMemory::Make(device))->data(), first);
}

TEST(PinnedMemoryTest, NoMemoryIsAnErrorThatSaysSo) {
  HC_IN_NEW_PROCESS({
    setenv("FAKE_GPU_FAULTS", "cuMemHostAlloc:1:2", 1);
    const auto device = FakeDriver::Get().device();
    const Device::Scope scope(*device);
    const auto none = PinnedMemory::Make(device);
    EXPECT_EQ(none.status().code(), StatusCode::kOutOfMemory);
    EXPECT_NE(none.status().message().find("CUDA device 0: cuMemHostAlloc failed"), std::string::npos);
  });
}

TEST(DeviceBufferTest, IsUsedAgainForWhatFits) {
  const auto device = FakeDriver::Get().device();
  const Device::Scope scope(*device);
  const auto stream = Good(Stream::Make(device));
  const auto make = [&](int64_t bytes) { return Good(DeviceBuffer::Make(device, bytes, stream.get())); };
  // Larger than the blocks of other tests of this process.
  const std::byte* const large = make(int64_t{900} << 20)->data();
  const uint64_t made = FakeDriver::Get().Calls("cuMemAlloc_v2");
  for (const int64_t bytes : {800, 1000, 300}) EXPECT_EQ(make(bytes << 20)->data(), large) << bytes;
  EXPECT_EQ(FakeDriver::Get().Calls("cuMemAlloc_v2"), made);
  EXPECT_NE(make(int64_t{200} << 20)->data(), large) << "it is much larger";
  EXPECT_NE(make(int64_t{1100} << 20)->data(), large);
}

TEST(DeviceBufferTest, TakesLittleForLittle) {
  HC_IN_NEW_PROCESS({
    const auto device = FakeDriver::Get().device();
    const Device::Scope scope(*device);
    const auto stream = Good(Stream::Make(device));
    const auto bytes = [&](int64_t wanted) { return Good(DeviceBuffer::Make(device, wanted, stream.get()))->bytes(); };
    EXPECT_EQ(bytes(1), 512);
    EXPECT_EQ(bytes(10'000), 16 << 10);
    EXPECT_EQ(bytes(2 << 20), 2 << 20);
    EXPECT_EQ(bytes((2 << 20) + 1), 2 << 20 << 1);
  });
}

TEST(DeviceBufferTest, IsNotUsedAgainWhileAnotherStreamUsesIt) {
  const auto device = FakeDriver::Get().device();
  HeldStream held;
  const Device::Scope scope(*device);
  const auto stream = Good(Stream::Make(device));
  const auto make = [&] { return Good(DeviceBuffer::Make(device, 40 << 20, stream.get())); };
  Event event = Good(Event::Make(device));
  DeviceMemory target(100);
  auto buffer = make();
  const std::byte* const memory = buffer->data();
  ASSERT_TRUE(buffer->CopyTo(target.data(), 100, held.handle()).ok());
  EXPECT_FALSE(Good(buffer->Used()));
  buffer.reset();
  EXPECT_NE(make()->data(), memory);
  ASSERT_TRUE(stream->Record(&event).ok());
  WaitFor(event);  // nothing makes this stream wait
  held.Release();
  while (device->driver().StreamQuery(held.handle()) == kNotReady) {
  }
  const auto first = make(), second = make();
  EXPECT_TRUE(first->data() == memory || second->data() == memory);
}

TEST(DeviceBufferTest, IsUsedAgainAtOnceOnItsOwnStream) {
  const auto device = FakeDriver::Get().device();
  HeldStream held;
  const Device::Scope scope(*device);
  const auto stream = Good(Stream::Make(device));
  Event reached = Good(Event::Make(device));
  ASSERT_TRUE(reached.Record(held.handle()).ok());
  ASSERT_TRUE(stream->Await(reached).ok());
  const std::byte* memory = nullptr;
  for (int turn = 0; turn < 3; ++turn) {
    const auto buffer = Good(DeviceBuffer::Make(device, 80 << 20, stream.get()));
    EXPECT_TRUE(memory == nullptr || buffer->data() == memory);
    memory = buffer->data();
    ASSERT_TRUE(stream->FillWithZeros(buffer->data(), 100).ok());
    ASSERT_TRUE(buffer->NoteUses(stream.get()).ok());
    EXPECT_FALSE(Good(buffer->Used()));
  }
  held.Release();
}

TEST(DeviceBufferTest, WithoutMemoryTheNextUserWaitsForTheLastUse) {
  HC_IN_NEW_PROCESS({
    setenv("FAKE_GPU_FAULTS", "cuMemAlloc_v2:3:2", 1);  // the first two are the target and the block
    const auto device = FakeDriver::Get().device();
    HeldStream held;
    const Device::Scope scope(*device);
    const auto stream = Good(Stream::Make(device));
    Event event = Good(Event::Make(device));
    DeviceMemory target(100);
    auto buffer = Good(DeviceBuffer::Make(device, 100, stream.get()));
    const std::byte* const memory = buffer->data();
    EXPECT_TRUE(buffer->CopyTo(target.data(), 100, held.handle()).ok());
    buffer.reset();
    EXPECT_EQ(Good(DeviceBuffer::Make(device, 100, stream.get()))->data(), memory);
    EXPECT_TRUE(stream->Record(&event).ok());
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(Good(event.Happened()));
    held.Release();
    WaitFor(event);
  });
}

TEST(DeviceBufferTest, OneThatWasGivenUpIsNotUsedAgain) {
  const auto device = FakeDriver::Get().device();
  const Device::Scope scope(*device);
  const auto stream = Good(Stream::Make(device));
  auto buffer = Good(DeviceBuffer::Make(device, 200 << 20, stream.get()));
  const std::byte* const memory = buffer->data();
  buffer->GiveUp();
  buffer.reset();
  EXPECT_NE(Good(DeviceBuffer::Make(device, 200 << 20, stream.get()))->data(), memory);
}

TEST(DeviceBufferTest, NoMemoryIsAnErrorThatSaysSo) {
  HC_IN_NEW_PROCESS({
    setenv("FAKE_GPU_FAULTS", "cuMemAlloc_v2:1:2", 1);
    const auto device = FakeDriver::Get().device();
    const Device::Scope scope(*device);
    const auto stream = Good(Stream::Make(device));
    const auto none = DeviceBuffer::Make(device, 5, stream.get());
    EXPECT_EQ(none.status().code(), StatusCode::kOutOfMemory);
    EXPECT_NE(none.status().message().find("CUDA device 0: cuMemAlloc failed"), std::string::npos);
  });
}

}  // namespace
}  // namespace horocache::cuda
