// Streams and what runs their work: a thread per stream, or, with FAKE_GPU_SEED, the callers' own calls.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "driver/driver.h"
#include "driver/options.h"

namespace fake_gpu {
namespace {

constexpr auto kPoll = std::chrono::microseconds(100);  // how often work that waits is tried again

// Handles of cuda.h: the legacy stream, and the stream of each thread.
bool IsLegacyHandle(const void* handle) { return handle == nullptr || handle == reinterpret_cast<void*>(1); }
bool IsPerThreadHandle(const void* handle) { return handle == reinterpret_cast<void*>(2); }

bool HasOlderItem(const Stream& stream, uint64_t number) {
  return !stream.items.empty() && stream.items.front().number < number;
}

// The legacy stream and all blocking streams of a device wait for each other's earlier work.
bool WaitsForLegacyRule(const Stream& stream, uint64_t number) {
  if (!stream.blocking) return false;
  if (!stream.legacy) return HasOlderItem(*stream.device->legacy, number);
  return std::ranges::any_of(state().streams, [&](const auto& entry) {
    const Stream& other = *entry.second;
    return other.device == stream.device && other.blocking && HasOlderItem(other, number);
  });
}

bool Runnable(Stream& stream) {
  if (stream.running || stream.items.empty()) return false;
  Stream::Item& item = stream.items.front();
  if (WaitsForLegacyRule(stream, item.number)) return false;
  if (options().stepper || options().delay_us == 0) return true;
  if (item.begin_ns == 0)
    item.begin_ns = Now() + static_cast<int64_t>(state().random() % static_cast<uint64_t>(options().delay_us)) * 1000;
  return Now() >= item.begin_ns;
}

// Runs the first item of a stream once. True if it has ended.
bool RunFirst(Lock* lock, Stream* stream) {
  stream->running = true;
  Stream::Item& item = stream->items.front();
  Work* const work = item.work.get();
  Device* const device = stream->device;
  bool drop = device->error != k_SUCCESS || device->references == 0;
  lock->unlock();
  if (!drop) {
    if (const std::optional<Code> fault = PlannedFault("work"); fault && *fault > 0) {
      Spoil(device, *fault);
      drop = true;
    }
  }
  const bool ended = drop || work->Run() == Work::Outcome::kDone;
  lock->lock();
  stream->running = false;
  if (ended) {
    if (!drop) work->Ended();
    stream->items.pop_front();
    state().changed.notify_all();
  }
  return ended;
}

// The thread of a stream; it ends once the stream is destroyed and empty.
void Serve(Stream* stream) {
  Lock lock(state().mutex);
  while (!stream->destroyed || !stream->items.empty()) {
    if (!Runnable(*stream)) {
      const bool waits = !stream->items.empty();
      if (waits) {
        state().changed.wait_for(lock, kPoll);
      } else {
        state().changed.wait(lock);
      }
      continue;
    }
    if (!RunFirst(&lock, stream)) state().changed.wait_for(lock, kPoll);
  }
}

void StartServing(Stream* stream) {
  if (options().stepper || stream->served) return;
  stream->served = true;
  const auto found = state().streams.find(stream);
  const std::shared_ptr<Stream> owner = found == state().streams.end() ? nullptr : found->second;
  std::thread([owner, stream] { Serve(stream); }).detach();  // the thread keeps the stream alive
}

std::vector<Stream*> AllStreams() {
  std::vector<Stream*> streams;
  for (const auto& device : state().devices) {
    if (device->legacy != nullptr) streams.push_back(device->legacy.get());
  }
  for (const auto& [handle, stream] : state().streams) streams.push_back(stream.get());
  // By age: their order in the table is not the same in every run.
  std::ranges::sort(streams, {}, [](const Stream* stream) {
    return stream->items.empty() ? uint64_t{0} : stream->items.front().number;
  });
  return streams;
}

// Runs one piece of work of a random stream; false if none can run. Work runs without the lock, so that another thread
// may have changed all streams since.
bool Step(Lock* lock) {
  std::set<const Stream*> tried;
  for (;;) {
    std::vector<Stream*> runnable;
    for (Stream* stream : AllStreams()) {
      if (Runnable(*stream) && !tried.contains(stream)) runnable.push_back(stream);
    }
    if (runnable.empty()) return false;
    Stream* const chosen = runnable[state().random() % runnable.size()];
    if (RunFirst(lock, chosen)) return true;
    tried.insert(chosen);
  }
}

// A stream that is captured cannot be asked or waited for; that ends the capture.
Code CheckNotCapturing(const Stream& stream) {
  if (stream.capture == nullptr) return k_SUCCESS;
  stream.capture->invalid = true;
  return k_STREAM_CAPTURE_UNSUPPORTED;
}

Code CreateStream(void** result, unsigned flags, int priority) {
  Device* device = nullptr;
  if (const Code unusable = UseCurrent(&device)) return unusable;
  if ((flags & ~kNonBlocking) != 0) return k_INVALID_VALUE;
  auto stream = std::make_shared<Stream>();
  stream->device = device;
  stream->blocking = (flags & kNonBlocking) == 0;
  stream->flags = flags;
  stream->priority = std::clamp(priority, -5, 0);
  const Lock lock(state().mutex);
  state().destroyed_streams.erase(stream.get());
  *result = stream.get();
  state().streams[stream.get()] = std::move(stream);
  return k_SUCCESS;
}

}  // namespace

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Code FindStream(const Lock&, const void* handle, Stream** stream) {
  if (IsLegacyHandle(handle) || IsPerThreadHandle(handle)) {
    Device* device = nullptr;
    if (const Code unusable = UseCurrent(&device)) return unusable;
    if (IsLegacyHandle(handle)) {
      *stream = device->legacy.get();
      return k_SUCCESS;
    }
    thread_local std::map<Device*, std::shared_ptr<Stream>> own;
    std::shared_ptr<Stream>& mine = own[device];
    if (mine == nullptr) {
      mine = std::make_shared<Stream>();
      mine->device = device;
      mine->blocking = true;
      state().streams[mine.get()] = mine;
    }
    *stream = mine.get();
    return k_SUCCESS;
  }
  const auto found = state().streams.find(handle);
  if (found == state().streams.end() || found->second->destroyed) {
    if (!state().destroyed_streams.contains(handle)) return k_INVALID_HANDLE;
    BreakRule("a destroyed stream is used");
    return k_INVALID_CONTEXT;
  }
  *stream = found->second.get();
  return ContextError(*(*stream)->device);
}

Code Enqueue(const Lock&, Stream* stream, MakeWork make) {
  if (stream->capture != nullptr) {
    if (stream->capture->invalid) return k_STREAM_CAPTURE_INVALIDATED;
    stream->capture->work.push_back(std::move(make));
    return k_SUCCESS;
  }
  if (stream->legacy) {
    for (const auto& [handle, other] : state().streams) {
      if (other->device != stream->device || !other->blocking || other->capture == nullptr) continue;
      other->capture->invalid = true;
      return k_STREAM_CAPTURE_IMPLICIT;
    }
  }
  stream->items.push_back({++state().last_item, make(), 0});
  StartServing(stream);
  state().changed.notify_all();
  return k_SUCCESS;
}

bool Busy(const Stream& stream) { return !stream.items.empty(); }

bool Busy(const Device& device) {
  if (device.legacy != nullptr && Busy(*device.legacy)) return true;
  return std::ranges::any_of(state().streams,
                             [&](const auto& entry) { return entry.second->device == &device && Busy(*entry.second); });
}

void WaitUntil(Lock* lock, const std::function<bool()>& done) {
  while (!done()) {
    if (!options().stepper) {
      state().changed.wait_for(*lock, std::chrono::milliseconds(10));
    } else if (!Step(lock)) {
      lock->unlock();
      usleep(50);  // another process or thread has to do something
      lock->lock();
    }
  }
}

void WaitForDevice(Lock* lock, Device* device) {
  if (!Busy(*device)) return;
  WaitUntil(lock, [device] { return device->error != k_SUCCESS || !Busy(*device); });
}

void Advance(Lock* lock) {
  if (!options().stepper) return;
  for (uint64_t steps = state().random() % 4; steps > 0 && Step(lock); --steps) continue;
}

// ---- streams

// With FAKE_GPU_SEED: begins the order of this seed, so that one process can go through many.
FAKE_GPU_API void fake_gpu_reseed(uint64_t seed) {
  const Lock lock(state().mutex);
  state().random.seed(seed);
}

FAKE_GPU_API Code cuStreamCreate(void** stream, unsigned flags) {
  if (const Code refused = Enter(__func__)) return refused;
  return CreateStream(stream, flags, 0);
}

FAKE_GPU_API Code cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  if (const Code refused = Enter(__func__)) return refused;
  return CreateStream(stream, flags, priority);
}

FAKE_GPU_API Code cuStreamGetPriority(void* handle, int* priority) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const Code wrong = FindStream(lock, handle, &stream)) return wrong;
  *priority = stream->priority;
  return k_SUCCESS;
}

FAKE_GPU_API Code cuStreamGetFlags(void* handle, unsigned* flags) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const Code wrong = FindStream(lock, handle, &stream)) return wrong;
  *flags = stream->flags;
  return k_SUCCESS;
}

FAKE_GPU_API Code cuStreamQuery(void* handle) {
  if (const Code refused = Enter(__func__, kUnsafe)) return refused;
  Lock lock(state().mutex);
  Advance(&lock);
  Stream* stream = nullptr;
  if (const Code wrong = FindStream(lock, handle, &stream)) return wrong;
  if (const Code captured = CheckNotCapturing(*stream)) return captured;
  return Busy(*stream) ? k_NOT_READY : k_SUCCESS;
}

FAKE_GPU_API Code cuStreamSynchronize(void* handle) {
  if (const Code refused = Enter(__func__, kUnsafe)) return refused;
  Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const Code wrong = FindStream(lock, handle, &stream)) return wrong;
  if (const Code captured = CheckNotCapturing(*stream)) return captured;
  // With the legacy stream, also for what the blocking streams do.
  const uint64_t last = state().last_item + 1;
  Device* const device = stream->device;
  WaitUntil(&lock, [&] {
    return device->error != k_SUCCESS || (!Busy(*stream) && !(stream->legacy && WaitsForLegacyRule(*stream, last)));
  });
  return ContextError(*device);
}

// Returns at once; the work goes on.
FAKE_GPU_API Code cuStreamDestroy_v2(void* handle) {
  if (const Code refused = Enter(__func__)) return refused;
  if (handle == nullptr) return k_INVALID_HANDLE;
  Lock lock(state().mutex);
  Stream* stream = nullptr;
  if (const Code wrong = FindStream(lock, handle, &stream)) return wrong;
  if (options().stepper) WaitUntil(&lock, [stream] { return !Busy(*stream); });
  stream->destroyed = true;
  const std::shared_ptr<Stream> owner = state().streams[handle];
  if (!Busy(*stream)) state().streams.erase(handle);
  // A busy one stays in the table, so that calls that wait for the device wait for it.
  if (Busy(*stream)) {
    std::thread([owner] {
      Lock inner(state().mutex);
      state().changed.wait(inner, [&] { return !Busy(*owner); });
      state().streams.erase(owner.get());
    }).detach();
  }
  state().destroyed_streams.insert(handle);
  state().changed.notify_all();
  return k_SUCCESS;
}

// ---- events

namespace {

class RecordWork : public Work {
 public:
  explicit RecordWork(std::shared_ptr<Record> record) : record_(std::move(record)) {}
  Outcome Run() override { return Outcome::kDone; }
  void Ended() override {
    record_->at_ns = Now();
    record_->complete = true;
  }

 private:
  const std::shared_ptr<Record> record_;
};

class WaitWork : public Work {
 public:
  explicit WaitWork(std::shared_ptr<Record> record) : record_(std::move(record)) {}
  Outcome Run() override { return record_->complete ? Outcome::kDone : Outcome::kAgain; }

 private:
  const std::shared_ptr<Record> record_;
};

Code FindEvent(const Lock&, const void* handle, Event** event) {
  const auto found = state().events.find(handle);
  if (found == state().events.end()) {
    if (handle == nullptr) return k_INVALID_HANDLE;
    if (!state().destroyed_events.contains(handle)) return k_INVALID_CONTEXT;
    BreakRule("a destroyed event is used");
    return k_CONTEXT_IS_DESTROYED;
  }
  *event = found->second.get();
  return ContextError(*(*event)->device);
}

std::shared_ptr<Capture> FindCapture(uint64_t id) {
  for (const std::weak_ptr<Capture>& weak : state().captures) {
    const std::shared_ptr<Capture> capture = weak.lock();
    if (capture != nullptr && capture->id == id) return capture;
  }
  return nullptr;
}

// An event that was recorded in a capture cannot be asked.
Code CheckRecordedOutside(const Event& event) {
  if (event.last == nullptr || event.last->capture == 0) return k_SUCCESS;
  const std::shared_ptr<Capture> capture = FindCapture(event.last->capture);
  if (capture == nullptr) return k_INVALID_VALUE;
  capture->invalid = true;
  return k_CAPTURED_EVENT;
}

// Asking an event of a capture spoils that capture, and calls that are not safe spoil others.
Code EnterWithEvent(const char* function, const void* handle) {
  {
    const Lock lock(state().mutex);
    const auto found = state().events.find(handle);
    if (found != state().events.end()) {
      if (const Code captured = CheckRecordedOutside(*found->second)) return captured;
    }
  }
  return Enter(function, kUnsafe | kInHostFunction);
}

}  // namespace

FAKE_GPU_API Code cuEventCreate(void** result, unsigned flags) {
  Device* device = nullptr;
  if (const Code refused = Enter(__func__)) return refused;
  if (const Code unusable = UseCurrent(&device)) return unusable;
  if ((flags & ~(kBlockingSync | kDisableTiming | kInterprocess)) != 0) return k_INVALID_VALUE;
  if ((flags & kInterprocess) != 0 && (flags & kDisableTiming) == 0) return k_INVALID_VALUE;
  auto event = std::make_unique<Event>();
  event->device = device;
  event->flags = flags;
  const Lock lock(state().mutex);
  state().destroyed_events.erase(event.get());
  *result = event.get();
  state().events[event.get()] = std::move(event);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuEventDestroy_v2(void* handle) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  Event* event = nullptr;
  if (const Code wrong = FindEvent(lock, handle, &event)) return wrong;
  if (event->last != nullptr && !event->last->complete && event->last->capture == 0)
    BreakRule("an event is destroyed while it is pending");
  state().events.erase(handle);
  state().destroyed_events.insert(handle);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuEventRecord(void* handle, void* stream_handle) {
  if (const Code refused = Enter(__func__)) return refused;
  Lock lock(state().mutex);
  Event* event = nullptr;
  Stream* stream = nullptr;
  if (const Code wrong = FindEvent(lock, handle, &event)) return wrong;
  if (const Code wrong = FindStream(lock, stream_handle, &stream)) return wrong;
  lock.unlock();
  const std::lock_guard context(stream->device->context_lock);
  lock.lock();
  auto record = std::make_shared<Record>();
  if (stream->capture != nullptr) {
    record->capture = stream->capture->id;
    event->last = record;
    return k_SUCCESS;
  }
  if (const Code refused = Enqueue(lock, stream, [record] { return std::make_unique<RecordWork>(record); }))
    return refused;
  event->last = record;
  Advance(&lock);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuEventQuery(void* handle) {
  if (const Code refused = EnterWithEvent(__func__, handle)) return refused;
  Lock lock(state().mutex);
  Advance(&lock);
  Event* event = nullptr;
  if (const Code wrong = FindEvent(lock, handle, &event)) return wrong;
  return event->last == nullptr || event->last->complete ? k_SUCCESS : k_NOT_READY;
}

FAKE_GPU_API Code cuEventSynchronize(void* handle) {
  if (const Code refused = EnterWithEvent(__func__, handle)) return refused;
  Lock lock(state().mutex);
  Event* event = nullptr;
  if (const Code wrong = FindEvent(lock, handle, &event)) return wrong;
  const std::shared_ptr<Record> record = event->last;
  Device* const device = event->device;
  WaitUntil(&lock, [&] { return device->error != k_SUCCESS || record == nullptr || record->complete; });
  return ContextError(*device);
}

FAKE_GPU_API Code cuEventElapsedTime_v2(float* ms, void* first_handle, void* second_handle) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  Event* first = nullptr;
  Event* second = nullptr;
  if (const Code wrong = FindEvent(lock, first_handle, &first)) return wrong;
  if (const Code wrong = FindEvent(lock, second_handle, &second)) return wrong;
  for (const Event* event : {first, second}) {
    if ((event->flags & kDisableTiming) != 0 || event->last == nullptr) return k_INVALID_HANDLE;
  }
  if (!first->last->complete || !second->last->complete) return k_NOT_READY;
  *ms = static_cast<float>(second->last->at_ns - first->last->at_ns) / 1e6F;
  return k_SUCCESS;
}

FAKE_GPU_API Code cuEventElapsedTime(float* ms, void* first, void* second) {
  return cuEventElapsedTime_v2(ms, first, second);
}

FAKE_GPU_API Code cuStreamWaitEvent(void* stream_handle, void* handle, unsigned flags) {
  if (const Code refused = Enter(__func__)) return refused;
  Lock lock(state().mutex);
  Event* event = nullptr;
  Stream* stream = nullptr;
  if (const Code wrong = FindEvent(lock, handle, &event)) return wrong;
  if (const Code wrong = FindStream(lock, stream_handle, &stream)) return wrong;
  if ((flags & ~1u) != 0) return k_INVALID_VALUE;
  const std::shared_ptr<Record> record = event->last;
  if (record == nullptr) return k_SUCCESS;
  if (record->capture != 0) {
    const std::shared_ptr<Capture> capture = FindCapture(record->capture);
    if (capture == nullptr) return k_INVALID_VALUE;
    if (stream->capture == nullptr) stream->capture = capture;
    return stream->capture == capture ? k_SUCCESS : k_STREAM_CAPTURE_ISOLATION;
  }
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;
    return k_STREAM_CAPTURE_ISOLATION;
  }
  const Code queued = Enqueue(lock, stream, [record] { return std::make_unique<WaitWork>(record); });
  Advance(&lock);
  return queued;
}

}  // namespace fake_gpu
