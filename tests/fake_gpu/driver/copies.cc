// Copies, fills, values that streams wait for or write, and host functions.
#include <cstring>

#include "driver/driver.h"
#include "driver/options.h"

namespace fake_gpu {
namespace {

// Work that is done in one step.
class SimpleWork : public Work {
 public:
  explicit SimpleWork(std::function<void()> run) : run_(std::move(run)) {}
  Outcome Run() override {
    run_();
    return Outcome::kDone;
  }

 private:
  const std::function<void()> run_;
};

MakeWork Simple(std::function<void()> run) {
  return [run = std::move(run)] { return std::make_unique<SimpleWork>(run); };
}

// Queues work on a stream as calls do that the real driver holds up while another call waits for the device.
Code Queue(void* handle, MakeWork make, Stream** used = nullptr) {
  Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const Code wrong = FindStream(lock, handle, &stream)) return wrong;
  lock.unlock();
  const std::lock_guard context(stream->device->context_lock);
  lock.lock();
  if (used != nullptr) *used = stream;
  const Code queued = Enqueue(lock, stream, std::move(make));
  Advance(&lock);
  return queued;
}

enum class Place { kDevice, kPinned, kPageable, kWrong };

Place PlaceOf(const Lock& lock, Address address, size_t bytes) {
  if (OwnerOf(lock, address) != nullptr) return FindAllocation(lock, address, bytes) ? Place::kDevice : Place::kWrong;
  return IsPinned(lock, address, bytes) ? Place::kPinned : Place::kPageable;
}

// A copy whose memory was right when it was queued.
std::function<void()> CopyOf(Address to, Address from, size_t bytes) {
  return [=] {
    Lock lock(state().mutex);
    std::byte* const target = Reach(lock, to, bytes);
    const std::byte* const source = Reach(lock, from, bytes);
    lock.unlock();
    if (target == nullptr || source == nullptr) {
      BreakRule("memory was freed before the copy of a stream that uses it");
      return;
    }
    std::memcpy(target, source, bytes);
  };
}

// `typed`: the direction is known from the function; an untyped copy of wrong memory crashes the real driver.
Code Copy(Address to, Address from, size_t bytes, void* stream, bool typed) {
  if (bytes == 0) return k_SUCCESS;
  Place target = Place::kWrong;
  Place source = Place::kWrong;
  bool capturing = false;
  {
    const Lock lock(state().mutex);
    target = PlaceOf(lock, to, bytes);
    source = PlaceOf(lock, from, bytes);
    Stream* found = nullptr;
    if (const Code wrong = FindStream(lock, stream, &found)) return wrong;
    capturing = found->capture != nullptr;
  }
  if (target == Place::kWrong || source == Place::kWrong) {
    if (!typed) BreakRule("an untyped copy uses memory of a device that is not allocated");
    return k_INVALID_VALUE;
  }
  if (source == Place::kPageable && !capturing) {
    // The bytes at the time of the call are what is copied.
    auto staged = std::make_shared<std::vector<std::byte>>(bytes);
    std::memcpy(staged->data(), reinterpret_cast<const void*>(from), bytes);
    return Queue(stream, Simple([=] { CopyOf(to, reinterpret_cast<Address>(staged->data()), bytes)(); }));
  }
  Stream* used = nullptr;
  const Code queued = Queue(stream, Simple(CopyOf(to, from, bytes)), &used);
  if (queued != k_SUCCESS || target != Place::kPageable || capturing) return queued;
  const std::lock_guard context(used->device->context_lock);
  Lock lock(state().mutex);
  WaitUntil(&lock, [used] { return used->device->error != k_SUCCESS || !Busy(*used); });
  return ContextError(*used->device);
}

// A copy that ends before the call returns.
Code CopyNow(Address to, Address from, size_t bytes) {
  if (const Code queued = Copy(to, from, bytes, nullptr, true)) return queued;
  Device* const device = Current();
  const std::lock_guard context(device->context_lock);
  Lock lock(state().mutex);
  WaitUntil(&lock, [device] { return device->error != k_SUCCESS || !Busy(*device->legacy); });
  return ContextError(*device);
}

template <typename T>
Code Fill(Address address, T value, size_t count, void* stream) {
  if (count == 0) return k_SUCCESS;
  {
    const Lock lock(state().mutex);
    if (PlaceOf(lock, address, count * sizeof(T)) != Place::kDevice) return k_INVALID_VALUE;
  }
  return Queue(stream, Simple([=] {
                 Lock lock(state().mutex);
                 auto* const target = reinterpret_cast<T*>(Reach(lock, address, count * sizeof(T)));
                 lock.unlock();
                 if (target != nullptr) std::fill_n(target, count, value);
               }));
}

}  // namespace

FAKE_GPU_API Code cuMemcpyAsync(Address to, Address from, size_t bytes, void* stream) {
  if (const Code refused = Enter(__func__)) return refused;
  return Copy(to, from, bytes, stream, false);
}

FAKE_GPU_API Code cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) {
  if (const Code refused = Enter(__func__)) return refused;
  return Copy(to, reinterpret_cast<Address>(from), bytes, stream, true);
}

FAKE_GPU_API Code cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
  if (const Code refused = Enter(__func__)) return refused;
  return Copy(reinterpret_cast<Address>(to), from, bytes, stream, true);
}

FAKE_GPU_API Code cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* stream) {
  if (const Code refused = Enter(__func__)) return refused;
  return Copy(to, from, bytes, stream, true);
}

FAKE_GPU_API Code cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) {
  if (const Code refused = Enter(__func__, kUnsafe)) return refused;
  return CopyNow(to, reinterpret_cast<Address>(from), bytes);
}

FAKE_GPU_API Code cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) {
  if (const Code refused = Enter(__func__, kUnsafe)) return refused;
  return CopyNow(reinterpret_cast<Address>(to), from, bytes);
}

FAKE_GPU_API Code cuMemsetD8Async(Address address, unsigned char value, size_t count, void* stream) {
  if (const Code refused = Enter(__func__)) return refused;
  return Fill(address, value, count, stream);
}

FAKE_GPU_API Code cuMemsetD32Async(Address address, unsigned value, size_t count, void* stream) {
  if (const Code refused = Enter(__func__)) return refused;
  return Fill(address, value, count, stream);
}

// ---- values

namespace {

std::atomic_ref<uint32_t> WordAt(Address address) {
  const Lock lock(state().mutex);
  return std::atomic_ref(*reinterpret_cast<uint32_t*>(Reach(lock, address, 4)));
}

class WaitValueWork : public Work {
 public:
  WaitValueWork(Address address, uint32_t value, unsigned comparison)
      : address_(address), value_(value), comparison_(comparison) {}
  Outcome Run() override {
    const uint32_t seen = WordAt(address_).load();
    const bool holds = comparison_ == 1 ? seen == value_ : static_cast<int32_t>(seen - value_) >= 0;
    return holds ? Outcome::kDone : Outcome::kAgain;
  }

 private:
  const Address address_;
  const uint32_t value_;
  const unsigned comparison_;
};

Code CheckWord(Address address) {
  const Lock lock(state().mutex);
  const Place place = PlaceOf(lock, address, 4);
  return address % 4 != 0 || place == Place::kPageable || place == Place::kWrong ? k_INVALID_VALUE : k_SUCCESS;
}

}  // namespace

FAKE_GPU_API Code cuStreamWaitValue32_v2(void* stream, Address address, unsigned value, unsigned flags) {
  if (const Code refused = Enter(__func__)) return refused;
  if (const Code wrong = CheckWord(address)) return wrong;
  if (flags > 1) return k_NOT_SUPPORTED;
  return Queue(stream, [=] { return std::make_unique<WaitValueWork>(address, value, flags); });
}

FAKE_GPU_API Code cuStreamWriteValue32_v2(void* stream, Address address, unsigned value, unsigned) {
  if (const Code refused = Enter(__func__)) return refused;
  if (const Code wrong = CheckWord(address)) return wrong;
  return Queue(stream, Simple([=] { WordAt(address).store(value); }));
}

// ---- host functions

namespace {

// Host functions of all streams run one after the other.
std::mutex& HostFunctionMutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}

}  // namespace

FAKE_GPU_API Code cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  if (const Code refused = Enter(__func__)) return refused;
  return Queue(stream, Simple([=] {
                 const std::lock_guard lock(HostFunctionMutex());
                 SetHostFunctionThread(true);
                 function(argument);
                 SetHostFunctionThread(false);
               }));
}

}  // namespace fake_gpu
