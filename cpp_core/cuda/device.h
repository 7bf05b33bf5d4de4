// One CUDA device as horocache uses it: its primary context, which frameworks use too, and streams, events and memory
// in it.
//
// Events, pinned memory and the device's own memory come from the device and return to it, and are freed when it is
// closed: making them takes as long as several copies, and freeing memory waits until the device has no work, the
// program's included.
//
// Threads: any, at the same time. Each call needs the context to be current in its thread; a Scope makes it so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "cuda/driver.h"
#include "cuda/packing.h"

namespace horocache::cuda {

class Device {
 public:
  // Retains the primary context of the device with this number. kInvalidArgument for a number without a device.
  static StatusOr<std::shared_ptr<Device>> Open(std::shared_ptr<const Driver> driver, int number);
  // Frees everything on a thread of its own, which it abandons after kCloseSeconds: a kernel of the program that never
  // ends must not keep the process.
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const { return *driver_; }
  int number() const { return number_; }
  // Driver::Check, with the device in front.
  Status Check(Code code, const char* call) const {
    return code == kSuccess ? Status::Ok() : Named(driver_->Check(code, call));
  }
  // An error with the device in front.
  Status Named(Status status) const;
  // The kernels that copy many tensors at once. The first call compiles them, and may wait for the device's work.
  // Requires a Scope.
  StatusOr<const PackingKernels*> Packing() HC_EXCLUDES(packing_mutex_);
  // kUnsupported if the program captures a graph on this stream of its own. Requires a Scope.
  Status CheckNotCaptured(StreamHandle stream) const;

  // Makes the context current in this thread, and keeps calls of this thread apart from captures: none is refused
  // because another thread of the program captures a graph, nor breaks such a capture.
  class Scope {
   public:
    explicit Scope(const Device& device);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    const Status& status() const { return status_; }

   private:
    const Driver& driver_;
    Status status_;
    int capture_mode_ = kCaptureRelaxed;
  };

 private:
  friend class Event;
  friend class PinnedMemory;
  friend class DeviceBuffer;
  // A block of the device's memory, and its last use so far.
  struct Block {
    std::byte* memory = nullptr;
    int64_t bytes = 0;
    EventHandle used = nullptr;
    uint64_t stream = 0;  // Stream::number of the last use; 0: a stream of the program, or none
  };
  static constexpr int kCloseSeconds = 2;

  // A block of at least `bytes` from those that are not in use; memory is null if there is none. Of `fresh` ones, whose
  // last use has ended or comes before on the stream, only those that are not much larger.
  Block TakeBlock(int64_t bytes, bool fresh, uint64_t stream) HC_EXCLUDES(blocks_mutex_);
  void GiveBlock(const Block& block) HC_EXCLUDES(blocks_mutex_);
  // Of the blocks that are free but for work that is queued.
  int64_t BytesThatWait() HC_EXCLUDES(blocks_mutex_);

  Device(std::shared_ptr<const Driver> driver, CudaDevice handle, int number, Context context)
      : driver_(std::move(driver)), handle_(handle), number_(number), context_(context) {}

  const std::shared_ptr<const Driver> driver_;
  const CudaDevice handle_;
  const int number_;
  const Context context_;
  Mutex mutex_;
  // Not in use, with room for all that have been made.
  std::vector<EventHandle> events_ HC_GUARDED_BY(mutex_);
  std::vector<std::byte*> pinned_ HC_GUARDED_BY(mutex_);
  size_t events_made_ HC_GUARDED_BY(mutex_) = 0;
  size_t pinned_made_ HC_GUARDED_BY(mutex_) = 0;
  Mutex blocks_mutex_;
  std::vector<Block> blocks_ HC_GUARDED_BY(blocks_mutex_);
  size_t blocks_made_ HC_GUARDED_BY(blocks_mutex_) = 0;
  Mutex packing_mutex_;
  std::unique_ptr<const PackingKernels> packing_ HC_GUARDED_BY(packing_mutex_);
};

// A mark in a stream, without time.
class Event {
 public:
  Event() = default;
  // Requires a Scope, here and below.
  static StatusOr<Event> Make(std::shared_ptr<Device> device);
  ~Event();
  Event(Event&& other) noexcept : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }

  Status Record(StreamHandle stream);
  // True once the stream has come to the last record. Does not wait.
  StatusOr<bool> Happened() const;
  // Work that is queued on the stream from now on begins once the event has happened.
  Status HoldBack(StreamHandle stream) const;
  // The same for a stream of the program, without a Scope. kUnsupported if the program captures a graph on it, which
  // then can wait for nothing outside of the graph.
  Status HoldBackProgram(StreamHandle stream) const;

 private:
  std::shared_ptr<Device> device_;
  EventHandle handle_ = nullptr;
};

// A stream of horocache's own: of the greatest priority, and independent of the legacy default stream.
class Stream {
 public:
  // Requires a Scope, here and below.
  static StatusOr<std::unique_ptr<Stream>> Make(std::shared_ptr<Device> device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Status CopyToHost(std::byte* to, const std::byte* from, int64_t bytes);
  Status CopyFromHost(std::byte* to, const std::byte* from, int64_t bytes);
  Status CopyOnDevice(std::byte* to, const std::byte* from, int64_t bytes);
  Status FillWithZeros(std::byte* to, int64_t bytes);
  Status Record(Event* event) {
    Count(1);
    return event->Record(handle_);
  }
  Status Await(const Event& event) {
    Count(1);
    return event.HoldBack(handle_);
  }
  // True if all work has ended, successfully or not.
  bool idle() const;
  StreamHandle handle() const { return handle_; }
  // Of no other stream of this process, while a handle may be used again.
  uint64_t number() const { return number_; }
  // The entries that have been queued on it: by the methods, and by others that Count them. The device's queue has room
  // for about 1,000, and a call waits while it is full.
  uint64_t entries() const { return entries_; }
  void Count(uint64_t entries) { entries_ += entries; }

 private:
  Stream(std::shared_ptr<Device> device, StreamHandle handle);

  const std::shared_ptr<Device> device_;
  const StreamHandle handle_;
  const uint64_t number_;
  uint64_t entries_ = 0;
};

// A block of the host's memory that the device copies from and to without the processor.
class PinnedMemory {
 public:
  static constexpr int64_t kBytes = 4 << 20;

  // Requires a Scope.
  static StatusOr<std::unique_ptr<PinnedMemory>> Make(std::shared_ptr<Device> device);
  // The device must have no work that uses the memory.
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  std::byte* data() const { return memory_; }

 private:
  PinnedMemory(std::shared_ptr<Device> device, std::byte* memory) : device_(std::move(device)), memory_(memory) {}

  const std::shared_ptr<Device> device_;
  std::byte* const memory_;
};

// A block of the device's memory. When it is dropped, work may still be queued that uses it.
//
// A block is given out again when that work has ended, or to the stream on which it is queued. So nothing waits for a
// stream of the program that it would not wait for otherwise. Only if more than kMostThatWait of blocks wait for
// streams, or the device has no memory left, the next user's work waits for the last use, on the device.
//
// Threads: one at a time.
class DeviceBuffer {
 public:
  // At least `bytes`, for work that is queued on `stream` from now on. Requires a Scope.
  static StatusOr<std::shared_ptr<DeviceBuffer>> Make(const std::shared_ptr<Device>& device, int64_t bytes,
                                                      Stream* stream);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  std::byte* data() const { return block_.memory; }
  int64_t bytes() const { return block_.bytes; }
  int device() const { return device_->number(); }
  // All uses are queued on `stream`. Requires a Scope.
  Status NoteUses(Stream* stream);
  // Queues a copy to `to` behind the noted uses, on a stream of the program, and notes it. Without a Scope.
  // kUnsupported if the program captures a graph on the stream.
  Status CopyTo(std::byte* to, int64_t bytes, StreamHandle stream);
  // True once the noted uses have ended. Without a Scope.
  StatusOr<bool> Used() const;
  // For work that may never end: the memory is not used again.
  void GiveUp() { block_.memory = nullptr; }

 private:
  static constexpr int64_t kMostThatWait = int64_t{1} << 30;  // bytes

  explicit DeviceBuffer(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  Status Allocate(int64_t bytes);
  Status Note(StreamHandle stream, uint64_t number);

  const std::shared_ptr<Device> device_;
  Device::Block block_;
};

// The devices that a rank has used, opened when they are first asked for.
class Devices {
 public:
  // `library`: see Driver::Load.
  explicit Devices(std::string library) : library_(std::move(library)) {}

  StatusOr<std::shared_ptr<Device>> Get(int number) HC_EXCLUDES(mutex_);

 private:
  const std::string library_;
  Mutex mutex_;
  std::shared_ptr<const Driver> driver_ HC_GUARDED_BY(mutex_);  // null before the first device
  std::map<int, std::shared_ptr<Device>> devices_ HC_GUARDED_BY(mutex_);
};

}  // namespace horocache::cuda
