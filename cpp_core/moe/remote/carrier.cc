#include "moe/remote/carrier.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "net/mpi/mpi_process.h"

namespace horocache::moe {
namespace {

constexpr int64_t kShortestNapNs = 10 * kNsPerUs;
constexpr int64_t kLongestNapNs = kNsPerMs;
// How long the destructor waits for the goodbyes of the others, which come at once if all ranks end together.
constexpr int64_t kFarewellNs = kNsPerS;
// Buffers that are kept for later writes.
constexpr size_t kSpareBuffers = 64;

}  // namespace

struct Carrier::Shared {
  Shared(std::unique_ptr<Transport> used, int ranks, std::function<void()> news)
      : transport(std::move(used)), on_news(std::move(news)), queues(static_cast<size_t>(ranks)) {}

  Mutex mutex;
  std::condition_variable changed;
  std::vector<RemoteWrite> posted HC_GUARDED_BY(mutex);
  std::vector<RemoteBuffer> spare HC_GUARDED_BY(mutex);
  std::vector<int> lost HC_GUARDED_BY(mutex);  // that the thread has not seen
  bool hurried HC_GUARDED_BY(mutex) = false;
  bool finished HC_GUARDED_BY(mutex) = false;
  bool ended HC_GUARDED_BY(mutex) = false;  // the thread has given the transport back
  Status broken HC_GUARDED_BY(mutex);
  std::atomic<bool> is_broken{false};
  std::atomic<bool> stopped{false};  // the destructor waits no more
  Mutex news_mutex;
  bool wants_news HC_GUARDED_BY(news_mutex) = true;

  // Of the thread:
  std::unique_ptr<Transport> transport;
  const std::function<void()> on_news HC_GUARDED_BY(news_mutex);
  struct Queue {
    std::deque<RemoteWrite> writes;
    size_t sent = 0;  // bytes of the first one
    bool lost = false;
  };
  std::vector<Queue> queues;  // by rank

  void TakePosted() HC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    for (const int peer : std::exchange(lost, {})) {
      Queue& queue = queues[static_cast<size_t>(peer)];
      queue.lost = true;
      queue.writes.clear();
    }
    for (RemoteWrite& write : posted) {
      Queue& queue = queues[static_cast<size_t>(write.peer)];
      if (!queue.lost) queue.writes.push_back(std::move(write));
    }
    posted.clear();
  }

  bool CarryAll() HC_EXCLUDES(mutex) {
    bool moved = false;
    for (Queue& queue : queues) {
      while (!queue.writes.empty() && transport->broken().ok()) {
        const size_t before = queue.sent;
        const bool complete = transport->Carry(queue.writes.front(), &queue.sent);
        moved |= complete || queue.sent != before;
        if (!complete) break;
        Keep(std::move(queue.writes.front().payload));
        queue.writes.pop_front();
        queue.sent = 0;
      }
    }
    return moved;
  }

  void Keep(RemoteBuffer buffer) HC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    if (buffer.room > 0 && spare.size() < kSpareBuffers) spare.push_back(std::move(buffer));
  }

  void News() HC_EXCLUDES(news_mutex) {
    const MutexLock lock(news_mutex);
    if (wants_news) on_news();
  }

  void NoteBroken() HC_EXCLUDES(mutex) {
    {
      const MutexLock lock(mutex);
      broken = transport->broken();
    }
    is_broken.store(true, std::memory_order_release);
    News();
  }

  bool HasNothingToCarry() HC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    return posted.empty() && std::ranges::all_of(queues, [](const Queue& queue) { return queue.writes.empty(); });
  }

  bool Finished() HC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    return finished;
  }

  // Waits for a write or a hurry, at most `nap_ns`. True if one came.
  bool Nap(int64_t nap_ns) HC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    const bool called = WaitUntil(&mutex, &changed, NowNs() + nap_ns,
                                  [this]() HC_NO_THREAD_SAFETY_ANALYSIS { return hurried || !posted.empty(); });
    hurried = false;
    return called;
  }
};

Carrier::Carrier(std::unique_ptr<Transport> transport, int ranks, std::function<void()> on_news)
    : sees_arrivals_(transport->sees_arrivals()),
      shared_(std::make_shared<Shared>(std::move(transport), ranks, std::move(on_news))),
      thread_("hc-carrier", [shared = shared_] { Run(shared); }) {}

Carrier::~Carrier() {
  Finish();
  {
    const MutexLock lock(shared_->news_mutex);
    shared_->wants_news = false;
  }
  const MutexLock lock(shared_->mutex);
  const auto ended = [this]() HC_NO_THREAD_SAFETY_ANALYSIS { return shared_->ended; };
  if (WaitUntil(&shared_->mutex, &shared_->changed, NowNs() + kFarewellNs, ended)) return;
  shared_->stopped = true;
  if (WaitUntil(&shared_->mutex, &shared_->changed, NowNs() + kFarewellNs, ended)) return;
  net::LeaveMpiUnfinalized();
  thread_.Abandon();
}

// See Note [The end of a carrier].
void Carrier::Run(const std::shared_ptr<Shared>& shared) {
  Shared& self = *shared;
  bool said_goodbye = false;
  for (int64_t moved_ns = NowNs(); !self.stopped;) {
    const bool finished = self.Finished();  // before the look for writes, of which there are no more then
    self.TakePosted();
    bool moved = self.CarryAll();
    if (self.transport->Receive()) {
      moved = true;
      self.News();
    }
    if (!self.transport->broken().ok()) {
      self.NoteBroken();
      break;
    }
    if (finished && !said_goodbye && self.HasNothingToCarry()) {
      self.transport->SayGoodbye();
      said_goodbye = true;
    }
    if (said_goodbye && self.transport->AllHaveLeft()) break;
    const int64_t now_ns = NowNs();
    if (moved || self.Nap(NapNs(now_ns - moved_ns))) moved_ns = now_ns;
  }
  self.transport.reset();
  const MutexLock lock(self.mutex);
  self.ended = true;
  self.changed.notify_all();
}

RemoteBuffer Carrier::Take(size_t bytes) {
  RemoteBuffer buffer;
  {
    const MutexLock lock(shared_->mutex);
    auto& spare = shared_->spare;
    const auto found = std::ranges::find_if(spare, [bytes](const RemoteBuffer& each) { return each.room >= bytes; });
    if (found != spare.end()) {
      buffer = std::move(*found);
      spare.erase(found);
    }
  }
  if (buffer.memory == nullptr) buffer = {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes, 0};
  buffer.bytes = bytes;
  return buffer;
}

void Carrier::Post(RemoteWrite write) {
  const MutexLock lock(shared_->mutex);
  if (shared_->finished || shared_->is_broken) return;
  shared_->posted.push_back(std::move(write));
  shared_->changed.notify_all();
}

void Carrier::Hurry() {
  const MutexLock lock(shared_->mutex);
  shared_->hurried = true;
  shared_->changed.notify_all();
}

int64_t Carrier::NapNs(int64_t idle_ns) { return std::clamp(idle_ns / 8, kShortestNapNs, kLongestNapNs); }

void Carrier::Lose(int peer) {
  const MutexLock lock(shared_->mutex);
  shared_->lost.push_back(peer);
}

void Carrier::Finish() {
  const MutexLock lock(shared_->mutex);
  shared_->finished = true;
}

Status Carrier::broken() const {
  if (!shared_->is_broken.load(std::memory_order_acquire)) return Status::Ok();
  const MutexLock lock(shared_->mutex);
  return shared_->broken;
}

}  // namespace horocache::moe
