#include "moe/remote/carrier.h"

#include <algorithm>
#include <condition_variable>
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
  Shared(std::unique_ptr<Transport> used, size_t ranks, std::function<void()> news)
      : queues(ranks), transport(std::move(used)), on_news(std::move(news)) {}

  struct Queue {
    std::vector<RemoteWrite> posted;
    bool lost = false;
  };
  Mutex mutex;
  std::condition_variable changed;
  std::vector<Queue> queues HC_GUARDED_BY(mutex);  // by rank
  size_t under_way HC_GUARDED_BY(mutex) = 0;       // writes that are posted and not carried
  std::vector<RemoteBuffer> spare HC_GUARDED_BY(mutex);
  bool called HC_GUARDED_BY(mutex) = false;    // the thread is to look now
  bool finished HC_GUARDED_BY(mutex) = false;  // no write follows
  bool stopped HC_GUARDED_BY(mutex) = false;   // the destructor waits no more
  bool ended HC_GUARDED_BY(mutex) = false;     // the thread has given the transport back
  Status broken HC_GUARDED_BY(mutex);
  std::atomic<bool> is_broken{false};
  std::unique_ptr<Transport> transport;  // of the thread
  Mutex news_mutex;
  std::function<void()> on_news HC_GUARDED_BY(news_mutex);  // null: the carrier has been destroyed

  void News() HC_EXCLUDES(news_mutex) {
    const MutexLock lock(news_mutex);
    if (on_news) on_news();
  }

  void Break(const Status& why) HC_EXCLUDES(mutex) {
    {
      const MutexLock lock(mutex);
      if (broken.ok()) broken = why;
      is_broken.store(true, std::memory_order_release);
      changed.notify_all();
    }
    News();
  }

  // Has the thread look now.
  void Call() HC_REQUIRES(mutex) {
    called = true;
    changed.notify_all();
  }

  std::vector<RemoteWrite> TakePosted(size_t peer) HC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    return std::exchange(queues[peer].posted, {});
  }

  // The write has been carried, or will not be.
  void Settle(RemoteWrite* write) HC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    --under_way;
    if (write->payload.room > 0 && spare.size() < kSpareBuffers) spare.push_back(std::move(write->payload));
  }

  bool IsLost(int peer) HC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    return queues[static_cast<size_t>(peer)].lost;
  }

  // The writes to one rank that the thread has taken.
  struct Backlog {
    std::vector<RemoteWrite> writes;
    size_t first = 0;  // that is not carried yet
    size_t sent = 0;   // bytes of it
  };

  // Carries what the transport takes. True if it took something.
  StatusOr<bool> CarryAll(std::vector<Backlog>* backlogs) HC_EXCLUDES(mutex) {
    bool moved = false;
    for (size_t peer = 0; peer < backlogs->size(); ++peer) {
      Backlog& backlog = (*backlogs)[peer];
      if (backlog.first == backlog.writes.size()) backlog = {TakePosted(peer), 0, 0};
      for (; backlog.first < backlog.writes.size(); ++backlog.first, backlog.sent = 0) {
        RemoteWrite& write = backlog.writes[backlog.first];
        const size_t before = backlog.sent;
        if (!IsLost(write.peer)) {
          const StatusOr<bool> done = transport->Carry(write, &backlog.sent);
          if (!done.ok()) return done;
          moved |= *done || backlog.sent != before;
          if (!*done) break;
        }
        Settle(&write);
      }
    }
    return moved;
  }

  // Waits for a post or a hurry, at most `nap_ns`. True if one came.
  bool Nap(int64_t nap_ns) HC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    WaitUntil(&mutex, &changed, NowNs() + nap_ns, [this]() HC_NO_THREAD_SAFETY_ANALYSIS { return called || stopped; });
    return std::exchange(called, false);
  }

  struct Stage {
    bool ends, may_part;
  };
  Stage Look() HC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    return {stopped || is_broken, finished && under_way == 0};
  }

  // See Note [The end of a carrier].
  Status Run(size_t ranks) HC_EXCLUDES(mutex) {
    std::vector<Backlog> backlogs(ranks);
    bool said_goodbye = false;
    for (int64_t moved_ns = NowNs();;) {
      const Stage stage = Look();
      if (stage.ends) return Status::Ok();
      if (stage.may_part && !said_goodbye) {
        HC_RETURN_IF_ERROR(transport->SayGoodbye());
        said_goodbye = true;
      }
      const StatusOr<bool> carried = CarryAll(&backlogs);
      if (!carried.ok()) return carried.status();
      const StatusOr<bool> arrived = transport->Receive();
      if (!arrived.ok()) return arrived.status();
      if (*arrived) News();
      if (said_goodbye && transport->AllHaveLeft()) return Status::Ok();
      const int64_t now_ns = NowNs();
      if (*carried || *arrived || Nap(NapNs(now_ns - moved_ns))) moved_ns = now_ns;
    }
  }

  void End(const Status& why) HC_EXCLUDES(mutex) {
    if (!why.ok()) Break(why);
    transport.reset();
    const MutexLock lock(mutex);
    ended = true;
    changed.notify_all();
  }
};

Carrier::Carrier(std::unique_ptr<Transport> transport, int ranks, std::function<void()> on_news)
    : sees_arrivals_(transport->sees_arrivals()),
      survives_losses_(transport->survives_losses()),
      shared_(std::make_shared<Shared>(std::move(transport), static_cast<size_t>(ranks), std::move(on_news))),
      thread_("hc-carrier", [shared = shared_, ranks] { shared->End(shared->Run(static_cast<size_t>(ranks))); }) {}

Carrier::~Carrier() {
  Finish();
  {
    const MutexLock lock(shared_->news_mutex);
    shared_->on_news = nullptr;
  }
  const MutexLock lock(shared_->mutex);
  const auto ended = [this]() HC_NO_THREAD_SAFETY_ANALYSIS { return shared_->ended; };
  if (WaitUntil(&shared_->mutex, &shared_->changed, NowNs() + kFarewellNs, ended)) return;
  shared_->stopped = true;
  shared_->changed.notify_all();
  if (WaitUntil(&shared_->mutex, &shared_->changed, NowNs() + kFarewellNs, ended)) return;
  net::LeaveMpiUnfinalized();
  thread_.Abandon();
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
  Shared::Queue& queue = shared_->queues[static_cast<size_t>(write.peer)];
  if (shared_->finished || shared_->is_broken || queue.lost) return;
  queue.posted.push_back(std::move(write));
  ++shared_->under_way;
  shared_->Call();
}

void Carrier::Hurry() {
  const MutexLock lock(shared_->mutex);
  shared_->Call();
}

int64_t Carrier::NapNs(int64_t idle_ns) { return std::clamp(idle_ns / 8, kShortestNapNs, kLongestNapNs); }

void Carrier::Lose(int peer, const std::string& name) {
  {
    const MutexLock lock(shared_->mutex);
    shared_->queues[static_cast<size_t>(peer)].lost = true;
  }
  if (survives_losses_) return;
  shared_->Break({StatusCode::kPeerLost, name + " was lost, and MPI's one-sided operations cannot go on without it; "
                                                "HOROCACHE_MOE_BETWEEN_HOSTS=messages can"});
}

void Carrier::Finish() {
  const MutexLock lock(shared_->mutex);
  shared_->finished = true;
  shared_->Call();
}

Status Carrier::broken() const {
  if (!shared_->is_broken.load(std::memory_order_acquire)) return Status::Ok();
  const MutexLock lock(shared_->mutex);
  return shared_->broken;
}

}  // namespace horocache::moe
