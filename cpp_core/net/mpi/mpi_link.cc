#include "net/mpi/mpi_link.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "base/clock.h"
#include "base/text.h"

namespace horocache::net {
namespace {

constexpr int kTag = 3;
constexpr size_t kFrameBytes = 32 << 10;
constexpr size_t kReceives = 32;      // posted at any time
constexpr size_t kSendsPerPeer = 16;  // under way at most
constexpr int kMostPerCall = 16;      // frames that one Receive hands over
// How long an end waits for the others' goodbyes. They come at once where the job ends on all ranks.
constexpr int64_t kFarewellNs = kNsPerS;

enum class Kind : uint64_t { kFrame, kBeat, kGoodbye };
constexpr size_t kHeaderBytes = sizeof(Kind);
constexpr size_t kMessageBytes = kHeaderBytes + kFrameBytes;

using Buffer = std::unique_ptr<std::byte[]>;

class MpiLink final : public Link {
 public:
  MpiLink(Communicator comm, MpiLinkConfig config);
  ~MpiLink() override;

  Status PostReceives();

  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  size_t max_frame_bytes() const override { return kFrameBytes; }
  bool must_poll() const override { return true; }
  bool sending() const override { return !sending_.empty(); }
  const Status& broken() const override { return broken_; }
  bool TrySend(int to, std::span<const std::byte> head, std::span<const std::byte> body) override;
  bool Receive(const Sink& sink) override;
  void SayGoodbye() override;

 private:
  struct Peer {
    size_t under_way = 0;
    int64_t sent_ns = 0;
    int64_t heard_ns = 0;
    bool left = false;
  };
  struct Sending {
    MpiRequest request;
    Buffer buffer;
    int to = 0;
  };
  struct Receiving {
    MpiRequest request;
    Buffer buffer;
  };

  bool PartInPeace();
  bool Start(int to, Kind kind, std::span<const std::byte> head, std::span<const std::byte> body);
  bool Reap();
  Status Post(Receiving* receiving);
  bool Take(Receiving* receiving, const Mpi::Received& received, const Sink& sink);
  void Watch(int64_t now_ns);
  void Break(Status why) {
    if (broken_.ok()) broken_ = std::move(why);
  }
  std::string Name(int peer) const { return config_.names[static_cast<size_t>(peer)]; }

  Communicator comm_;
  const MpiLinkConfig config_;
  std::vector<Peer> peers_;
  std::deque<Sending> sending_;
  // In the order in which they were posted, which is the order in which they are matched: taken in that order, the
  // frames of each peer come in theirs.
  std::deque<Receiving> receiving_;
  std::vector<Buffer> spare_;
  int64_t watched_ns_ = 0;  // when Watch was called last
  bool said_goodbye_ = false;
  Status broken_;
};

MpiLink::MpiLink(Communicator comm, MpiLinkConfig config)
    : comm_(std::move(comm)), config_(std::move(config)), peers_(static_cast<size_t>(comm_.size())) {
  const int64_t now_ns = NowNs();
  for (Peer& peer : peers_) peer.sent_ns = peer.heard_ns = now_ns;
}

// What is under way belongs to the library until it is complete, see Note [A request that is late].
MpiLink::~MpiLink() {
  if (comm_.mpi().Finalized()) return;
  if (!PartInPeace()) comm_.Abandon();
  for (Sending& sending : sending_) sending.buffer.release();  // NOLINT
  for (Receiving& receiving : receiving_) {
    const bool cancelled = comm_.mpi().Cancel(&receiving.request).ok();
    const StatusOr<bool> done = cancelled ? comm_.mpi().Test(&receiving.request, nullptr) : StatusOr<bool>(false);
    if (!done.ok() || !*done) receiving.buffer.release();  // NOLINT
  }
}

// True when nothing is under way to or from this end any more, and nothing will be. See Note [The end of a link].
bool MpiLink::PartInPeace() {
  const auto left = [this](const Peer& peer) { return peer.left || &peer == &peers_[static_cast<size_t>(rank())]; };
  const auto over = [&] { return sending_.empty() && std::ranges::all_of(peers_, left); };
  const int64_t deadline_ns = NowNs() + kFarewellNs;
  while (said_goodbye_ && broken_.ok() && !over() && NowNs() < deadline_ns) {
    if (!Receive([](int, std::span<const std::byte>) {})) sched_yield();
  }
  return said_goodbye_ && broken_.ok() && over();
}

Status MpiLink::PostReceives() {
  for (size_t i = 0; i < kReceives; ++i) {
    receiving_.push_back({{}, std::make_unique<std::byte[]>(kMessageBytes)});
    if (Status posted = Post(&receiving_.back()); !posted.ok()) {
      receiving_.pop_back();
      return posted;
    }
  }
  return Status::Ok();
}

Status MpiLink::Post(Receiving* receiving) {
  return comm_.mpi().Irecv(receiving->buffer.get(), static_cast<int>(kMessageBytes), comm_.mpi().byte(),
                           Mpi::kAnySource, kTag, comm_.get(), &receiving->request);
}

bool MpiLink::TrySend(int to, std::span<const std::byte> head, std::span<const std::byte> body) {
  if (!broken_.ok() || said_goodbye_) return false;
  if (peers_[static_cast<size_t>(to)].under_way >= kSendsPerPeer) Reap();
  if (peers_[static_cast<size_t>(to)].under_way >= kSendsPerPeer) return false;
  return Start(to, Kind::kFrame, head, body);
}

bool MpiLink::Start(int to, Kind kind, std::span<const std::byte> head, std::span<const std::byte> body) {
  Buffer buffer;
  if (spare_.empty()) {
    buffer = std::make_unique<std::byte[]>(kMessageBytes);
  } else {
    buffer = std::move(spare_.back());
    spare_.pop_back();
  }
  std::byte* at = buffer.get();
  std::memcpy(at, &kind, kHeaderBytes);
  if (!head.empty()) std::memcpy(at + kHeaderBytes, head.data(), head.size());
  if (!body.empty()) std::memcpy(at + kHeaderBytes + head.size(), body.data(), body.size());
  const size_t bytes = kHeaderBytes + head.size() + body.size();
  MpiRequest request;
  const Status started =
      comm_.mpi().Isend(at, static_cast<int>(bytes), comm_.mpi().byte(), to, kTag, comm_.get(), &request);
  if (!started.ok()) {
    Break({StatusCode::kPeerLost, Name(rank()) + " cannot send to " + Name(to) + " over MPI: " + started.message()});
    return false;
  }
  Peer& peer = peers_[static_cast<size_t>(to)];
  ++peer.under_way;
  peer.sent_ns = NowNs();
  sending_.push_back({request, std::move(buffer), to});
  return true;
}

// Gives the memory of completed sends back; true if there was any.
bool MpiLink::Reap() {
  const size_t before = sending_.size();
  std::erase_if(sending_, [this](Sending& sending) {
    const StatusOr<bool> done = comm_.mpi().Test(&sending.request, nullptr);
    if (!done.ok()) {
      Break({StatusCode::kPeerLost,
             Name(rank()) + " cannot send to " + Name(sending.to) + " over MPI: " + done.status().message()});
    }
    if (done.ok() && !*done) return false;
    --peers_[static_cast<size_t>(sending.to)].under_way;
    spare_.push_back(std::move(sending.buffer));
    return true;
  });
  return sending_.size() != before;
}

bool MpiLink::Receive(const Sink& sink) {
  if (!broken_.ok()) return false;
  bool moved = !sending_.empty() && Reap();
  for (int taken = 0; taken < kMostPerCall && broken_.ok(); ++taken) {
    Receiving& oldest = receiving_.front();
    Mpi::Received received;
    const StatusOr<bool> done = comm_.mpi().Test(&oldest.request, &received);
    if (!done.ok()) {
      Break({StatusCode::kPeerLost, Name(rank()) + " cannot receive over MPI: " + done.status().message()});
      break;
    }
    if (!*done) break;
    moved |= Take(&oldest, received, sink);
    Receiving again = std::move(oldest);
    receiving_.pop_front();
    if (const Status posted = Post(&again); !posted.ok()) Break(posted);
    receiving_.push_back(std::move(again));
  }
  if (config_.silence_ns > 0 && !said_goodbye_) Watch(NowNs());
  return moved;
}

// True if it was a frame.
bool MpiLink::Take(Receiving* receiving, const Mpi::Received& received, const Sink& sink) {
  const auto bytes = static_cast<size_t>(std::max(received.count, 0));
  if (received.from < 0 || received.from >= size() || bytes < kHeaderBytes || bytes > kMessageBytes) {
    Break({StatusCode::kCorrupt, Name(rank()) + " got a message of " + std::to_string(received.count) +
                                     " bytes from rank " + std::to_string(received.from) + " over MPI"});
    return false;
  }
  Peer& peer = peers_[static_cast<size_t>(received.from)];
  peer.heard_ns = NowNs();
  Kind kind{};
  std::memcpy(&kind, receiving->buffer.get(), kHeaderBytes);
  if (kind == Kind::kGoodbye) peer.left = true;
  if (kind != Kind::kFrame) return false;
  sink(received.from, {receiving->buffer.get() + kHeaderBytes, bytes - kHeaderBytes});
  return true;
}

// See Note [Watching over MPI].
void MpiLink::Watch(int64_t now_ns) {
  const int64_t interval_ns = config_.silence_ns / 3;
  const int64_t since_ns = now_ns - std::exchange(watched_ns_, now_ns);
  for (int to = 0; to < size(); ++to) {
    Peer& peer = peers_[static_cast<size_t>(to)];
    if (to == rank() || peer.left) continue;
    // This end was stopped itself for a while: what came meanwhile is still to be taken.
    if (since_ns > interval_ns) peer.heard_ns = std::max(peer.heard_ns, now_ns - interval_ns);
    if (now_ns - peer.sent_ns >= interval_ns && peer.under_way < kSendsPerPeer) Start(to, Kind::kBeat, {}, {});
    if (now_ns - peer.heard_ns < config_.silence_ns) continue;
    Break({StatusCode::kPeerLost, Name(to) + " has not been heard of by " + Name(rank()) + " over MPI for " +
                                      SecondsText(config_.silence_ns) +
                                      ": it, its host or the network between the two is gone"});
  }
}

void MpiLink::SayGoodbye() {
  if (std::exchange(said_goodbye_, true)) return;
  for (int to = 0; to < size() && broken_.ok(); ++to) {
    if (to != rank()) Start(to, Kind::kGoodbye, {}, {});
  }
}

}  // namespace

StatusOr<std::unique_ptr<Link>> MakeMpiLink(Communicator comm, MpiLinkConfig config) {
  auto link = std::make_unique<MpiLink>(std::move(comm), std::move(config));
  HC_RETURN_IF_ERROR(link->PostReceives());
  return std::unique_ptr<Link>(std::move(link));
}

}  // namespace horocache::net
