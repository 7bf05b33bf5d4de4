#include "net/mpi/message_link.h"

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
constexpr size_t kReceives = 32;      // most receives under way
constexpr size_t kSendsPerPeer = 16;  // most sends under way to one peer
constexpr int kMostPerCall = 16;      // most frames that one Receive hands over
// How long an end waits, after its own goodbye, for the others' goodbyes. They come at once if the job ends on all
// ranks.
constexpr int64_t kFarewellNs = kNsPerS;
constexpr int64_t kFarewellNapNs = 200 * kNsPerUs;

enum class Kind : uint64_t { kFrame, kGoodbye };
constexpr size_t kKindBytes = sizeof(Kind);
constexpr size_t kMessageBytes = kKindBytes + kFrameBytes;

using Buffer = std::unique_ptr<std::byte[]>;

std::string CannotReceive(const Status& why) { return " cannot receive over MPI: " + why.message(); }

class MpiLink final : public Link {
 public:
  MpiLink(Communicator comm, std::vector<std::string> names);
  ~MpiLink() override;

  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  size_t max_frame_bytes() const override { return kFrameBytes; }
  bool must_poll() const override { return true; }
  bool sending() const override { return !sending_.empty(); }
  const Status& broken() const override { return broken_; }
  bool TrySend(int to, std::span<const std::byte> head, std::span<const std::byte> body) override;
  bool Receive(const Sink& sink) override;
  void SayGoodbye() override;
  bool HasLeft(int peer) const override { return peers_[static_cast<size_t>(peer)].left; }

 private:
  struct Peer {
    size_t under_way = 0;
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
    int from = 0;
    size_t bytes = 0;
  };

  bool PartInPeace();
  bool Start(int to, Kind kind, std::span<const std::byte> head, std::span<const std::byte> body);
  bool Reap();
  bool StartNext();
  bool Take(Receiving* oldest, const Sink& sink);
  Buffer TakeBuffer();
  void Break(Status why) {
    if (broken_.ok()) broken_ = std::move(why);
  }
  std::string Name(int peer) const { return names_[static_cast<size_t>(peer)]; }

  Communicator comm_;
  const std::vector<std::string> names_;
  std::vector<Peer> peers_;
  std::deque<Sending> sending_;
  // In the order of arrival. Taken in this order, the frames of each peer stay in order.
  std::deque<Receiving> receiving_;
  std::vector<Buffer> spare_;
  int64_t goodbye_ns_ = 0;  // when this end sent its goodbye; 0: not yet
  Status broken_;
};

MpiLink::MpiLink(Communicator comm, std::vector<std::string> names)
    : comm_(std::move(comm)), names_(std::move(names)), peers_(static_cast<size_t>(comm_.size())) {
  peers_[static_cast<size_t>(rank())].left = true;  // this end sends nothing to itself
}

// Buffers of requests under way belong to the library until these complete, see Note [Requests past their deadline].
MpiLink::~MpiLink() {
  if (comm_.mpi().Finalized()) return;
  if (!PartInPeace()) comm_.Abandon();
  for (Sending& sending : sending_) sending.buffer.release();          // NOLINT
  for (Receiving& receiving : receiving_) receiving.buffer.release();  // NOLINT
}

// Waits for the peers' goodbyes, for a limited time. True if nothing is under way to or from this end any more, and
// nothing will be. See Note [Closing an MPI link].
bool MpiLink::PartInPeace() {
  const auto over = [this] { return sending_.empty() && std::ranges::all_of(peers_, &Peer::left); };
  if (goodbye_ns_ == 0) return false;
  while (broken_.ok() && !over() && NowNs() < goodbye_ns_ + kFarewellNs) {
    if (!Receive([](int, std::span<const std::byte>) {})) Nap(kFarewellNapNs);
  }
  return broken_.ok() && over();
}

bool MpiLink::TrySend(int to, std::span<const std::byte> head, std::span<const std::byte> body) {
  if (!broken_.ok() || goodbye_ns_ > 0) return false;
  if (peers_[static_cast<size_t>(to)].under_way >= kSendsPerPeer) Reap();
  if (peers_[static_cast<size_t>(to)].under_way >= kSendsPerPeer) return false;
  return Start(to, Kind::kFrame, head, body);
}

bool MpiLink::Start(int to, Kind kind, std::span<const std::byte> head, std::span<const std::byte> body) {
  Buffer buffer = TakeBuffer();
  std::byte* at = buffer.get();
  std::memcpy(at, &kind, kKindBytes);
  if (!head.empty()) std::memcpy(at + kKindBytes, head.data(), head.size());
  if (!body.empty()) std::memcpy(at + kKindBytes + head.size(), body.data(), body.size());
  const size_t bytes = kKindBytes + head.size() + body.size();
  MpiRequest request;
  const Status started =
      comm_.mpi().Isend(at, static_cast<int>(bytes), comm_.mpi().byte(), to, kTag, comm_.get(), &request);
  if (!started.ok()) {
    Break({StatusCode::kPeerLost, Name(rank()) + " cannot send to " + Name(to) + " over MPI: " + started.message()});
    return false;
  }
  ++peers_[static_cast<size_t>(to)].under_way;
  sending_.push_back({request, std::move(buffer), to});
  return true;
}

Buffer MpiLink::TakeBuffer() {
  if (spare_.empty()) return std::make_unique<std::byte[]>(kMessageBytes);
  Buffer buffer = std::move(spare_.back());
  spare_.pop_back();
  return buffer;
}

// Takes back the buffers of completed sends; true if any send was complete.
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
  for (int taken = 0; taken < kMostPerCall; ++taken) {
    while (receiving_.size() < kReceives && StartNext()) {
    }
    if (receiving_.empty() || !Take(&receiving_.front(), sink)) break;
    spare_.push_back(std::move(receiving_.front().buffer));
    receiving_.pop_front();
    moved = true;
  }
  return moved;
}

// Starts to receive the next message that has arrived; false if there is none.
bool MpiLink::StartNext() {
  MpiMessage message;
  Mpi::Received found;
  const StatusOr<bool> arrived = comm_.mpi().Improbe(kTag, comm_.get(), &message, &found);
  if (!arrived.ok()) Break({StatusCode::kPeerLost, Name(rank()) + CannotReceive(arrived.status())});
  if (!arrived.ok() || !*arrived) return false;
  const auto bytes = static_cast<size_t>(std::max(found.count, 0));
  if (found.from < 0 || found.from >= size() || bytes < kKindBytes || bytes > kMessageBytes) {
    Break({StatusCode::kCorrupt, Name(rank()) + " got a message of " + std::to_string(found.count) +
                                     " bytes from rank " + std::to_string(found.from) + " over MPI"});
    return false;
  }
  Receiving receiving{{}, TakeBuffer(), found.from, bytes};
  const Status started =
      comm_.mpi().Imrecv(receiving.buffer.get(), found.count, comm_.mpi().byte(), &message, &receiving.request);
  if (!started.ok()) Break({StatusCode::kPeerLost, Name(rank()) + CannotReceive(started)});
  if (started.ok()) receiving_.push_back(std::move(receiving));
  return started.ok();
}

// Hands over the oldest message if it is complete; true if so.
bool MpiLink::Take(Receiving* oldest, const Sink& sink) {
  const StatusOr<bool> done = comm_.mpi().Test(&oldest->request, nullptr);
  if (!done.ok()) Break({StatusCode::kPeerLost, Name(rank()) + CannotReceive(done.status())});
  if (!done.ok() || !*done) return false;
  Kind kind{};
  std::memcpy(&kind, oldest->buffer.get(), kKindBytes);
  if (kind == Kind::kGoodbye) peers_[static_cast<size_t>(oldest->from)].left = true;
  if (kind == Kind::kFrame) sink(oldest->from, {oldest->buffer.get() + kKindBytes, oldest->bytes - kKindBytes});
  return true;
}

void MpiLink::SayGoodbye() {
  if (goodbye_ns_ > 0) return;
  goodbye_ns_ = NowNs();
  for (int to = 0; to < size() && broken_.ok(); ++to) {
    if (to != rank()) Start(to, Kind::kGoodbye, {}, {});
  }
}

}  // namespace

std::unique_ptr<Link> MakeMpiLink(Communicator comm, std::vector<std::string> names) {
  return std::make_unique<MpiLink>(std::move(comm), std::move(names));
}

}  // namespace horocache::net
