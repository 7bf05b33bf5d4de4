#include "testing/fake_device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "base/clock.h"

namespace horocache::testing {
namespace {

constexpr int64_t kLongestSleepNs = 100 * kNsPerMs;

class FakeEvent : public data::Event {
 public:
  explicit FakeEvent(std::shared_ptr<std::atomic<bool>> fired) : fired_(std::move(fired)) {}
  bool Ready() override { return fired_->load(std::memory_order_acquire); }

 private:
  const std::shared_ptr<std::atomic<bool>> fired_;
};

}  // namespace

FakeDevice::FakeDevice(int64_t delay_ns, std::function<void()> notify)
    : delay_ns_(delay_ns), notify_(std::move(notify)) {}

FakeDevice::~FakeDevice() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.Join();
}

FakeDevice::Queue* FakeDevice::AddQueue() {
  const MutexLock lock(mutex_);
  queues_.push_back(std::make_unique<Queue>());
  return queues_.back().get();
}

void FakeDevice::RemoveQueue(Queue* queue) {
  const MutexLock lock(mutex_);
  queue->work.clear();
  while (queue->running) Sleep(kLongestSleepNs);
  std::erase_if(queues_, [queue](const std::unique_ptr<Queue>& owned) { return owned.get() == queue; });
}

void FakeDevice::Enqueue(Queue* queue, Work work) {
  const MutexLock lock(mutex_);
  if (!started_) {
    started_ = true;
    thread_ = NamedThread("hc-fakedevice", [this] { Run(); });
  }
  work.delay_ns += delay_ns_;
  if (queue->work.empty() && !queue->running) queue->front_since_ns = NowNs();
  queue->work.push_back(std::move(work));
  changed_.notify_all();
}

FakeDevice::Queue* FakeDevice::NextDue(int64_t now_ns, int64_t* wait_ns) {
  *wait_ns = kLongestSleepNs;
  for (const std::unique_ptr<Queue>& queue : queues_) {
    if (queue->work.empty()) continue;
    const int64_t left = queue->front_since_ns + queue->work.front().delay_ns - now_ns;
    if (left <= 0) return queue.get();
    *wait_ns = std::min(*wait_ns, left);
  }
  return nullptr;
}

void FakeDevice::Sleep(int64_t wait_ns) {
  std::unique_lock<std::mutex> native(mutex_.native(), std::adopt_lock);
  changed_.wait_for(native, std::chrono::nanoseconds(wait_ns));
  native.release();
}

void FakeDevice::Run() {
  const MutexLock lock(mutex_);
  while (!stopping_) {
    int64_t wait_ns = 0;
    Queue* const queue = NextDue(NowNs(), &wait_ns);
    if (queue == nullptr) {
      Sleep(wait_ns);
      continue;
    }
    const Work work = std::move(queue->work.front());
    queue->work.pop_front();
    queue->running = true;
    mutex_.Unlock();
    work.run();
    if (notify_) notify_();
    mutex_.Lock();
    queue->running = false;
    queue->front_since_ns = NowNs();
    changed_.notify_all();
  }
}

FakeStream::FakeStream(std::shared_ptr<FakeDevice> device) : device_(std::move(device)), queue_(device_->AddQueue()) {}

FakeStream::~FakeStream() { device_->RemoveQueue(queue_); }

void FakeStream::Enqueue(std::function<void()> work, int64_t extra_delay_ns) {
  device_->Enqueue(queue_, {std::move(work), extra_delay_ns});
}

std::unique_ptr<data::Event> FakeStream::Record() {
  auto fired = std::make_shared<std::atomic<bool>>(false);
  device_->Enqueue(queue_, {[fired] { fired->store(true, std::memory_order_release); }, 0});
  return std::make_unique<FakeEvent>(std::move(fired));
}

}  // namespace horocache::testing
