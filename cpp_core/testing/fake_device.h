// A device emulated with host memory and a thread: streams run work in order and asynchronously, and events signal its
// completion. Tests use it in place of a GPU to exercise streams and events.
//
// Threads: streams may be used from any thread; the work runs on the thread "hc-fakedevice", which starts with the
// first piece of work. Ownership: a stream shares the device. A stream's destructor drops work that has not begun and
// waits for running work.
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

namespace horocache::testing {

class FakeDevice {
 public:
  // Each piece of work completes after `delay_ns` or later; the device's thread then calls `notify`.
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
    int64_t front_since_ns = 0;  // when the first piece became the first of the queue
    bool running = false;
  };

  Queue* AddQueue();
  void RemoveQueue(Queue* queue);
  void Enqueue(Queue* queue, Work work);
  void Run();
  // A queue whose first piece is due; null if none is, with the time to wait in `wait_ns`.
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

  // Runs `work` after all work enqueued before, delayed by the device's delay and `extra_delay_ns`.
  void Enqueue(std::function<void()> work, int64_t extra_delay_ns = 0);
  // Returns an event that is ready when all work enqueued so far is done.
  std::unique_ptr<data::Event> Record();

 private:
  const std::shared_ptr<FakeDevice> device_;
  FakeDevice::Queue* const queue_;
};

}  // namespace horocache::testing
