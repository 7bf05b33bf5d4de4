// A device made of host memory and a thread: streams run work in order, later, and tell by events that it is done. It
// stands in for a GPU wherever streams and events have to be exercised without one.
//
// Threads: streams may be used from any thread; the work runs on the thread "hc-fakedevice", which starts with the
// first piece of work. Ownership: a stream shares the device; a stream's destructor drops what has not begun and waits
// for what has.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"
#include "data/backend.h"

namespace horocache::data {

class FakeDevice {
 public:
  // Every piece of work takes at least `delay_ns`; `notify` is called after each, on the device's thread.
  explicit FakeDevice(int64_t delay_ns = 0, std::function<void()> notify = nullptr);
  ~FakeDevice();
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

 private:
  friend class FakeStream;
  struct Work {
    std::function<void()> run;
    int64_t delay_ns = 0;
  };
  struct Queue {
    std::deque<Work> work;
    int64_t front_since_ns = 0;  // the front piece is next since then
    bool running = false;
  };

  Queue* AddQueue();
  void RemoveQueue(Queue* queue);
  void Enqueue(Queue* queue, Work work);
  void Run();
  // The queue whose front piece is due; null and the time to wait if there is none.
  Queue* NextDue(int64_t now_ns, int64_t* wait_ns) HC_REQUIRES(mutex_);
  void Sleep(int64_t wait_ns) HC_REQUIRES(mutex_);

  const int64_t delay_ns_;
  const std::function<void()> notify_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Queue>> queues_ HC_GUARDED_BY(mutex_);
  bool stopping_ HC_GUARDED_BY(mutex_) = false;
  bool started_ HC_GUARDED_BY(mutex_) = false;
  NamedThread thread_;
};

class FakeStream {
 public:
  explicit FakeStream(std::shared_ptr<FakeDevice> device);
  ~FakeStream();
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;

  // Runs `work` after everything enqueued before, and not before `extra_delay_ns` on top of the device's delay.
  void Enqueue(std::function<void()> work, int64_t extra_delay_ns = 0);
  // Ready when everything enqueued so far is done.
  std::unique_ptr<Event> Record();

 private:
  const std::shared_ptr<FakeDevice> device_;
  FakeDevice::Queue* const queue_;
};

}  // namespace horocache::data
