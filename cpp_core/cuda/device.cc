#include "cuda/device.h"

#include <exception>

#include "base/clock.h"
#include "base/thread.h"

namespace horocache::cuda {
namespace {

Address AddressOf(const std::byte* memory) { return reinterpret_cast<Address>(memory); }

}  // namespace

// ---- Device

StatusOr<std::shared_ptr<Device>> Device::Open(std::shared_ptr<const Driver> driver, int number) {
  int count = 0;
  HC_RETURN_IF_ERROR(driver->Check(driver->DeviceGetCount(&count), "cuDeviceGetCount"));
  if (number < 0 || number >= count) {
    return InvalidArgumentError("there is no CUDA device " + std::to_string(number) + ": this process has " +
                                std::to_string(count));
  }
  CudaDevice handle = 0;
  HC_RETURN_IF_ERROR(driver->Check(driver->DeviceGet(&handle, number), "cuDeviceGet"));
  Context context = nullptr;
  HC_RETURN_IF_ERROR(driver->Check(driver->DevicePrimaryCtxRetain(&context, handle), "cuDevicePrimaryCtxRetain"));
  return std::shared_ptr<Device>(new Device(std::move(driver), handle, number, context));
}

Device::~Device() {
  std::vector<EventHandle> events;
  std::vector<std::byte*> pinned;
  {
    const MutexLock lock(mutex_);
    events = std::move(events_);
    pinned = std::move(pinned_);
  }
  // The thread has copies of everything, because it may outlive this object.
  try {
    const LimitedCall close("hc-cuda-close", [driver = driver_, context = context_, handle = handle_,
                                              events = std::move(events), pinned = std::move(pinned)] {
      if (driver->CtxPushCurrent(context) == kSuccess) {
        int capture_mode = kCaptureRelaxed;
        driver->ThreadExchangeStreamCaptureMode(&capture_mode);
        // One that a stream of the program has not come to stays: the context's end frees it.
        for (const EventHandle event : events) {
          if (driver->EventQuery(event) != kNotReady) driver->EventDestroy(event);
        }
        for (std::byte* const memory : pinned) driver->MemFreeHost(memory);
        Context popped = nullptr;
        driver->CtxPopCurrent(&popped);
      }
      driver->DevicePrimaryCtxRelease(handle);
    });
    static_cast<void>(close.ReturnedBy(DeadlineNs(kCloseSeconds)));
  } catch (const std::exception&) {  // no thread or no memory: the driver frees everything at exit
  }
}

Status Device::Check(Code code, const char* call) const {
  if (code == kSuccess) return Status::Ok();
  const Status failed = driver_->Check(code, call);
  return {failed.code(), "CUDA device " + std::to_string(number_) + ": " + failed.message()};
}

Status Device::CheckNotCaptured(StreamHandle stream) const {
  int capturing = kNotCapturing;
  const Code code = driver_->StreamIsCapturing(stream, &capturing);
  if (code != kCaptureImplicit) HC_RETURN_IF_ERROR(Check(code, "cuStreamIsCapturing"));
  if (code != kCaptureImplicit && capturing == kNotCapturing) return Status::Ok();
  return UnsupportedError(
      "the program captures a CUDA graph on the tensor's stream; the ranks agree on an operation each time it is "
      "submitted, so a graph cannot hold one. Call it outside of the capture.");
}

Device::Scope::Scope(const Device& device) : driver_(device.driver()) {
  status_ = device.Check(driver_.CtxPushCurrent(device.context_), "cuCtxPushCurrent");
  if (status_.ok()) driver_.ThreadExchangeStreamCaptureMode(&capture_mode_);
}

Device::Scope::~Scope() {
  if (!status_.ok()) return;
  driver_.ThreadExchangeStreamCaptureMode(&capture_mode_);
  Context context = nullptr;
  driver_.CtxPopCurrent(&context);
}

// ---- Event

StatusOr<Event> Event::Make(std::shared_ptr<Device> device) {
  Event event;
  {
    const MutexLock lock(device->mutex_);
    if (!device->events_.empty()) {
      event.handle_ = device->events_.back();
      device->events_.pop_back();
    }
  }
  if (event.handle_ == nullptr) {
    const Code code = device->driver().EventCreate(&event.handle_, kEventDisableTiming);
    HC_RETURN_IF_ERROR(device->Check(code, "cuEventCreate"));
    const MutexLock lock(device->mutex_);
    device->events_.reserve(++device->events_made_);  // its return needs no memory
  }
  event.device_ = std::move(device);
  return event;
}

Event::~Event() {
  if (handle_ == nullptr) return;
  const MutexLock lock(device_->mutex_);
  device_->events_.push_back(handle_);
}

Status Event::Record(StreamHandle stream) {
  return device_->Check(device_->driver().EventRecord(handle_, stream), "cuEventRecord");
}

StatusOr<bool> Event::Happened() const {
  const Code code = device_->driver().EventQuery(handle_);
  if (code == kNotReady) return false;
  HC_RETURN_IF_ERROR(device_->Check(code, "cuEventQuery"));
  return true;
}

Status Event::HoldBack(StreamHandle stream) const {
  return device_->Check(device_->driver().StreamWaitEvent(stream, handle_, 0), "cuStreamWaitEvent");
}

Status Event::HoldBackProgram(StreamHandle stream) const {
  const Device::Scope scope(*device_);
  HC_RETURN_IF_ERROR(scope.status());
  HC_RETURN_IF_ERROR(device_->CheckNotCaptured(stream));
  return HoldBack(stream);
}

// ---- Stream

StatusOr<std::unique_ptr<Stream>> Stream::Make(std::shared_ptr<Device> device) {
  const Driver& driver = device->driver();
  int least = 0, greatest = 0;
  HC_RETURN_IF_ERROR(device->Check(driver.CtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange"));
  StreamHandle handle = nullptr;
  HC_RETURN_IF_ERROR(device->Check(driver.StreamCreateWithPriority(&handle, kStreamNonBlocking, greatest),
                                   "cuStreamCreateWithPriority"));
  return std::unique_ptr<Stream>(new Stream(std::move(device), handle));
}

Stream::~Stream() {
  const Device::Scope scope(*device_);
  device_->driver().StreamDestroy(handle_);
}

Status Stream::CopyToHost(std::byte* to, const std::byte* from, int64_t bytes) {
  const Code code = device_->driver().MemcpyDtoHAsync(to, AddressOf(from), static_cast<size_t>(bytes), handle_);
  return device_->Check(code, "cuMemcpyDtoHAsync");
}

Status Stream::CopyFromHost(std::byte* to, const std::byte* from, int64_t bytes) {
  const Code code = device_->driver().MemcpyHtoDAsync(AddressOf(to), from, static_cast<size_t>(bytes), handle_);
  return device_->Check(code, "cuMemcpyHtoDAsync");
}

bool Stream::idle() const { return device_->driver().StreamQuery(handle_) != kNotReady; }

// ---- PinnedMemory

StatusOr<std::unique_ptr<PinnedMemory>> PinnedMemory::Make(std::shared_ptr<Device> device) {
  void* memory = nullptr;
  {
    const MutexLock lock(device->mutex_);
    if (!device->pinned_.empty()) {
      memory = device->pinned_.back();
      device->pinned_.pop_back();
    }
  }
  if (memory == nullptr) {
    const Code code = device->driver().MemHostAlloc(&memory, kBytes, kHostAllocPortable);
    HC_RETURN_IF_ERROR(device->Check(code, "cuMemHostAlloc"));
    const MutexLock lock(device->mutex_);
    device->pinned_.reserve(++device->pinned_made_);  // its return needs no memory
  }
  return std::unique_ptr<PinnedMemory>(new PinnedMemory(std::move(device), static_cast<std::byte*>(memory)));
}

PinnedMemory::~PinnedMemory() {
  const MutexLock lock(device_->mutex_);
  device_->pinned_.push_back(memory_);
}

// ---- Devices

StatusOr<std::shared_ptr<Device>> Devices::Get(int number) {
  const MutexLock lock(mutex_);
  if (const auto found = devices_.find(number); found != devices_.end()) return found->second;
  if (driver_ == nullptr) {
    StatusOr<std::shared_ptr<const Driver>> driver = Driver::Load(library_);
    if (!driver.ok()) return driver.status();
    driver_ = std::move(*driver);
  }
  StatusOr<std::shared_ptr<Device>> device = Device::Open(driver_, number);
  if (!device.ok()) return device.status();
  devices_[number] = *device;
  return *device;
}

}  // namespace horocache::cuda
