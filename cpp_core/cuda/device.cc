#include "cuda/device.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <exception>
#include <iterator>
#include <limits>

#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"

namespace horocache::cuda {
namespace {

constexpr int64_t kGranule = 2 << 20;  // bytes in which a device gives memory out; smaller blocks share them
constexpr int64_t kSmallestBlock = 512;

std::atomic<uint64_t> streams{0};  // that have been made

Address AddressOf(const std::byte* memory) { return reinterpret_cast<Address>(memory); }

// In few different sizes, so that blocks fit later results that are a little larger: powers of two up to a granule, and
// then at most a quarter more.
int64_t BlockBytes(int64_t bytes) {
  const auto least = static_cast<uint64_t>(std::max(kSmallestBlock, bytes));
  if (bytes <= kGranule) return static_cast<int64_t>(std::bit_ceil(least));
  return RoundUp(bytes, std::max(kGranule, static_cast<int64_t>(std::bit_floor(least)) / 4));
}

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
  std::vector<Block> blocks;
  ModuleHandle module = nullptr;
  {
    const MutexLock lock(packing_mutex_);
    if (packing_ != nullptr) module = packing_->module();
  }
  {
    const MutexLock lock(mutex_);
    events = std::move(events_);
    pinned = std::move(pinned_);
  }
  {
    const MutexLock lock(blocks_mutex_);
    blocks = std::move(blocks_);
  }
  // The thread has copies of everything, because it may outlive this object.
  try {
    const LimitedCall close("hc-cuda-close",
                            [driver = driver_, context = context_, handle = handle_, events = std::move(events),
                             pinned = std::move(pinned), blocks = std::move(blocks), module] {
                              if (driver->CtxPushCurrent(context) == kSuccess) {
                                int capture_mode = kCaptureRelaxed;
                                driver->ThreadExchangeStreamCaptureMode(&capture_mode);
                                // One that a stream of the program has not come to stays: the context's end frees it.
                                for (const EventHandle event : events) {
                                  if (driver->EventQuery(event) != kNotReady) driver->EventDestroy(event);
                                }
                                for (std::byte* const memory : pinned) driver->MemFreeHost(memory);
                                // Freeing memory and unloading a module may wait for work of the program.
                                if (module != nullptr) driver->ModuleUnload(module);
                                for (const Block& block : blocks) {
                                  driver->MemFree(AddressOf(block.memory));
                                  driver->EventDestroy(block.used);
                                }
                                Context popped = nullptr;
                                driver->CtxPopCurrent(&popped);
                              }
                              driver->DevicePrimaryCtxRelease(handle);
                            });
    static_cast<void>(close.ReturnedBy(DeadlineNs(kCloseSeconds)));
  } catch (const std::exception&) {  // no thread or no memory: the driver frees everything at exit
  }
}

Status Device::Named(Status status) const {
  if (status.ok()) return status;
  return {status.code(), "CUDA device " + std::to_string(number_) + ": " + status.message()};
}

StatusOr<const PackingKernels*> Device::Packing() {
  const MutexLock lock(packing_mutex_);
  if (packing_ == nullptr) {
    auto loaded = PackingKernels::Load(*driver_, handle_);
    if (!loaded.ok()) return Named(loaded.status());
    packing_ = std::move(*loaded);
  }
  return packing_.get();
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

Stream::Stream(std::shared_ptr<Device> device, StreamHandle handle)
    : device_(std::move(device)), handle_(handle), number_(++streams) {}

Stream::~Stream() {
  const Device::Scope scope(*device_);
  device_->driver().StreamDestroy(handle_);
}

Status Stream::CopyToHost(std::byte* to, const std::byte* from, int64_t bytes) {
  Count(1);
  const Code code = device_->driver().MemcpyDtoHAsync(to, AddressOf(from), static_cast<size_t>(bytes), handle_);
  return device_->Check(code, "cuMemcpyDtoHAsync");
}

Status Stream::CopyFromHost(std::byte* to, const std::byte* from, int64_t bytes) {
  Count(1);
  const Code code = device_->driver().MemcpyHtoDAsync(AddressOf(to), from, static_cast<size_t>(bytes), handle_);
  return device_->Check(code, "cuMemcpyHtoDAsync");
}

Status Stream::CopyOnDevice(std::byte* to, const std::byte* from, int64_t bytes) {
  Count(1);
  const Code code =
      device_->driver().MemcpyDtoDAsync(AddressOf(to), AddressOf(from), static_cast<size_t>(bytes), handle_);
  return device_->Check(code, "cuMemcpyDtoDAsync");
}

Status Stream::FillWithZeros(std::byte* to, int64_t bytes) {
  Count(1);
  const Code code = device_->driver().MemsetD8Async(AddressOf(to), 0, static_cast<size_t>(bytes), handle_);
  return device_->Check(code, "cuMemsetD8Async");
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

// ---- DeviceBuffer

Device::Block Device::TakeBlock(int64_t bytes, bool fresh, uint64_t stream) {
  const int64_t most = fresh ? std::max(kSmallestBlock, 4 * bytes) : std::numeric_limits<int64_t>::max();
  std::vector<Block> fitting;
  {
    const MutexLock lock(blocks_mutex_);
    std::ranges::copy_if(blocks_, std::back_inserter(fitting),
                         [&](const Block& block) { return block.bytes >= bytes && block.bytes <= most; });
  }
  std::ranges::sort(fitting, {}, &Block::bytes);
  for (const Block& block : fitting) {
    // Without the lock, because the driver may let a call wait.
    if (fresh && block.stream != stream && driver_->EventQuery(block.used) != kSuccess) continue;
    const MutexLock lock(blocks_mutex_);
    const auto found = std::ranges::find(blocks_, block.memory, &Block::memory);
    if (found == blocks_.end() || found->stream != block.stream) continue;  // another thread has taken it
    blocks_.erase(found);
    return block;
  }
  return {};
}

int64_t Device::BytesThatWait() {
  std::vector<Block> blocks;
  {
    const MutexLock lock(blocks_mutex_);
    blocks = blocks_;
  }
  int64_t bytes = 0;
  for (const Block& block : blocks) bytes += driver_->EventQuery(block.used) == kNotReady ? block.bytes : 0;
  return bytes;
}

void Device::GiveBlock(const Block& block) {
  const MutexLock lock(blocks_mutex_);
  blocks_.push_back(block);
}

StatusOr<std::shared_ptr<DeviceBuffer>> DeviceBuffer::Make(const std::shared_ptr<Device>& device, int64_t bytes,
                                                           Stream* stream) {
  std::shared_ptr<DeviceBuffer> buffer(new DeviceBuffer(device));
  Device::Block& block = buffer->block_;
  block = device->TakeBlock(bytes, true, stream->number());
  if (block.memory != nullptr) return buffer;
  if (device->BytesThatWait() > std::max(kMostThatWait, 2 * bytes)) block = device->TakeBlock(bytes, false, 0);
  if (block.memory == nullptr) {
    const Status allocated = buffer->Allocate(bytes);
    if (allocated.ok()) return buffer;
    block = device->TakeBlock(bytes, false, 0);
    if (block.memory == nullptr) return allocated;
  }
  HC_RETURN_IF_ERROR(
      device->Check(device->driver().StreamWaitEvent(stream->handle(), block.used, 0), "cuStreamWaitEvent"));
  return buffer;
}

Status DeviceBuffer::Allocate(int64_t bytes) {
  const Driver& driver = device_->driver();
  {
    const MutexLock lock(device_->blocks_mutex_);
    device_->blocks_.reserve(device_->blocks_made_ + 1);  // the block's return needs no memory
  }
  Address address = 0;
  EventHandle used = nullptr;
  const int64_t rounded = BlockBytes(bytes);
  HC_RETURN_IF_ERROR(device_->Check(driver.MemAlloc(&address, static_cast<size_t>(rounded)), "cuMemAlloc"));
  const Status made = device_->Check(driver.EventCreate(&used, kEventDisableTiming), "cuEventCreate");
  if (!made.ok()) {
    driver.MemFree(address);
    return made;
  }
  const MutexLock lock(device_->blocks_mutex_);
  ++device_->blocks_made_;
  block_ = {reinterpret_cast<std::byte*>(address), rounded, used, 0};
  return Status::Ok();
}

DeviceBuffer::~DeviceBuffer() {
  if (block_.memory != nullptr) device_->GiveBlock(block_);
}

Status DeviceBuffer::Note(StreamHandle stream, uint64_t number) {
  const Status noted = device_->Check(device_->driver().EventRecord(block_.used, stream), "cuEventRecord");
  if (!noted.ok()) GiveUp();
  block_.stream = number;
  return noted;
}

Status DeviceBuffer::NoteUses(Stream* stream) {
  stream->Count(1);
  return Note(stream->handle(), stream->number());
}

Status DeviceBuffer::CopyTo(std::byte* to, int64_t bytes, StreamHandle stream) {
  const Device::Scope scope(*device_);
  HC_RETURN_IF_ERROR(scope.status());
  HC_RETURN_IF_ERROR(device_->CheckNotCaptured(stream));
  const Driver& driver = device_->driver();
  HC_RETURN_IF_ERROR(device_->Check(driver.StreamWaitEvent(stream, block_.used, 0), "cuStreamWaitEvent"));
  const Code code = driver.MemcpyDtoDAsync(AddressOf(to), AddressOf(block_.memory), static_cast<size_t>(bytes), stream);
  HC_RETURN_IF_ERROR(device_->Check(code, "cuMemcpyDtoDAsync"));
  return Note(stream, 0);
}

StatusOr<bool> DeviceBuffer::Used() const {
  const Device::Scope scope(*device_);
  HC_RETURN_IF_ERROR(scope.status());
  const Code code = device_->driver().EventQuery(block_.used);
  if (code == kNotReady) return false;
  HC_RETURN_IF_ERROR(device_->Check(code, "cuEventQuery"));
  return true;
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
