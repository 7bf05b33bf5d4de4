// The fake CUDA driver of tests/fake_gpu, for tests of C++.
//
// Its options are environment variables, which it reads once: a test that sets some uses HC_IN_NEW_PROCESS. Without
// FAKE_GPU_SEED the tests set it, so that streams have no threads: calls move their work, in an order drawn from the
// seed.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/dynlib.h"
#include "cuda/device.h"

// Runs statements in a process that has not used the fake yet; what fails in it fails the test.
#define HC_IN_NEW_PROCESS(...)                     \
  GTEST_FLAG_SET(death_test_style, "threadsafe");  \
  EXPECT_EXIT(                                     \
      {                                            \
        __VA_ARGS__;                               \
        std::_Exit(::testing::Test::HasFailure()); \
      },                                           \
      ::testing::ExitedWithCode(0), "")

namespace horocache::cuda::testing {

// Before any test, because the driver reads it when it is first used, and which test that is depends on what runs.
inline const bool kSeeded = setenv("FAKE_GPU_SEED", "1", 0) == 0;

// The value; without one the test fails.
template <typename T>
T Good(StatusOr<T> made) {
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(*made);
}

class FakeDriver {
 public:
  static const FakeDriver& Get() {
    static const FakeDriver* const fake = new FakeDriver;
    return *fake;
  }

  // Of the process, so that a test does not open the device anew.
  const std::shared_ptr<Devices>& devices() const { return devices_; }
  std::shared_ptr<Device> device(int number = 0) const {
    StatusOr<std::shared_ptr<Device>> device = devices_->Get(number);
    EXPECT_TRUE(device.ok()) << device.status().message();
    return *device;
  }

  // A function of the library.
  template <typename F>
  F* Function(const char* name) const {
    void* const found = library_.Find(name);
    if (found == nullptr) std::abort();
    return reinterpret_cast<F*>(found);
  }
  // How often a function of the driver has been called.
  uint64_t Calls(const char* function) const { return Function<uint64_t(const char*)>("fake_gpu_calls")(function); }

 private:
  FakeDriver() : devices_(std::make_shared<Devices>(HC_FAKE_CUDA)) {
    StatusOr<DynamicLibrary> library = DynamicLibrary::Open(HC_FAKE_CUDA, false);
    if (!library.ok()) std::abort();
    library_ = std::move(*library);
  }

  const std::shared_ptr<Devices> devices_;
  DynamicLibrary library_;
};

// Memory of the device 0. The processor cannot read it: an access ends the process.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    const Device::Scope scope(*FakeDriver::Get().device());
    Expect(FakeDriver::Get().Function<Code(Address*, size_t)>("cuMemAlloc_v2")(&address_, bytes));
  }
  ~DeviceMemory() {
    if (bytes_ == 0) return;
    const Device::Scope scope(*FakeDriver::Get().device());
    Expect(FakeDriver::Get().Function<Code(Address)>("cuMemFree_v2")(address_));
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }

  void Write(const std::byte* from) {
    if (bytes_ == 0) return;
    const Device::Scope scope(*FakeDriver::Get().device());
    Expect(FakeDriver::Get().Function<Code(Address, const void*, size_t)>("cuMemcpyHtoD_v2")(address_, from, bytes_));
  }
  void Read(std::byte* to) const {
    if (bytes_ == 0) return;
    const Device::Scope scope(*FakeDriver::Get().device());
    Expect(FakeDriver::Get().Function<Code(void*, Address, size_t)>("cuMemcpyDtoH_v2")(to, address_, bytes_));
  }

 private:
  static void Expect(Code code) { EXPECT_EQ(code, kSuccess); }

  const size_t bytes_;
  Address address_ = 0;
};

// A stream of the program, which is held up until it is released.
class HeldStream {
 public:
  HeldStream() : device_(FakeDriver::Get().device()) {
    const Device::Scope scope(*device_);
    EXPECT_EQ(device_->driver().StreamCreateWithPriority(&handle_, kStreamNonBlocking, 0), kSuccess);
    StatusOr<std::unique_ptr<PinnedMemory>> word = PinnedMemory::Make(device_);
    EXPECT_TRUE(word.ok());
    word_ = std::move(*word);
    Write(0);
    constexpr unsigned kUntilGreaterOrEqual = 0;
    const auto wait =
        FakeDriver::Get().Function<Code(StreamHandle, Address, unsigned, unsigned)>("cuStreamWaitValue32_v2");
    EXPECT_EQ(wait(handle_, reinterpret_cast<Address>(word_->data()), 1, kUntilGreaterOrEqual), kSuccess);
  }
  ~HeldStream() {
    Release();
    const Device::Scope scope(*device_);
    while (device_->driver().StreamQuery(handle_) == kNotReady) {
    }
    EXPECT_EQ(device_->driver().StreamDestroy(handle_), kSuccess);
  }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  void Release() { Write(1); }
  StreamHandle handle() const { return handle_; }

 private:
  void Write(uint32_t value) { std::atomic_ref(*reinterpret_cast<uint32_t*>(word_->data())).store(value); }

  const std::shared_ptr<Device> device_;
  StreamHandle handle_ = nullptr;
  std::unique_ptr<PinnedMemory> word_;
};

}  // namespace horocache::cuda::testing
