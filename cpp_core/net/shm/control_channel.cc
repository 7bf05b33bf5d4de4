#include "net/shm/control_channel.h"

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "control/bitvector.h"
#include "net/shm/frame_ring.h"

namespace horocache::net {
namespace {

class ShmChannel final : public RuntimeChannel {
 public:
  ShmChannel(std::shared_ptr<Arena> arena, int rank, std::vector<Doorbell> doorbells);

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void SetHint(std::span<const uint64_t> words) override;
  void AndHints(std::vector<uint64_t>* out) override;
  void Publish(uint64_t round, std::span<const uint64_t> words, std::span<const uint64_t> payload) override;
  bool HasPublished(int rank, uint64_t round) override;
  bool AndSnapshots(uint64_t round, std::vector<uint64_t>* out) override;
  bool SharesBitvector(int) const override { return true; }
  bool ReadPublished(int rank, uint64_t round, std::vector<uint64_t>* words, std::vector<uint64_t>* payload) override;

  void Send(int to, std::string_view frame) override;
  bool Receive(int* from, std::string* frame) override;
  bool Progress() override;
  void Ring(int rank) override { doorbells_[static_cast<size_t>(rank)].Ring(); }
  const Status& broken() const override { return broken_; }
  void SayGoodbye(bool job_lost) override;
  int Departed() override;

 private:
  struct Peer {
    int rank;
    FrameWriter out;
    FrameReader in;
    bool lost = false;
  };
  struct Result {
    bool valid = false;
    uint64_t round = 0;
    std::vector<uint64_t> words;
  };

  struct Counts {
    size_t words, payload;
  };

  void Store(const Arena::Words& area, std::span<const uint64_t> words, std::span<const uint64_t> payload);
  Counts CountsOf(const Arena::Words& area) const;
  size_t Count(const Arena::Words& area) const { return CountsOf(area).words; }
  void AndShared(const Arena::Words& area, std::vector<uint64_t>* out) const;
  void Break(Status status) {
    if (broken_.ok()) broken_ = std::move(status);
  }
  void BreakPeer(Peer& peer, const Status& why);
  Peer& RouteTo(int rank) { return peers_[rank_ == 0 ? static_cast<size_t>(rank) - 1 : 0]; }
  bool Flush(Peer& peer);
  bool Pump(Peer& peer);
  bool Pass(Peer& peer);

  const std::shared_ptr<Arena> arena_;
  std::vector<Doorbell> doorbells_;  // by rank
  const int rank_;
  const int size_;
  const size_t max_words_;
  std::vector<Arena::Words> hints_;
  std::vector<std::array<Arena::Words, 2>> snapshots_;
  std::array<Result, 2> results_;  // of the last two rounds, whose snapshots may be overwritten by then
  uint64_t hint_version_ = 0;
  std::vector<Peer> peers_;      // rank 0: every other rank; other ranks: rank 0 only
  size_t next_ = 0;              // the index at which Receive begins
  std::deque<std::string> own_;  // frames from this rank to itself
  Status broken_;
};

ShmChannel::ShmChannel(std::shared_ptr<Arena> arena, int rank, std::vector<Doorbell> doorbells)
    : arena_(std::move(arena)),
      doorbells_(std::move(doorbells)),
      rank_(rank),
      size_(arena_->layout().ranks),
      max_words_(static_cast<size_t>(arena_->layout().max_words)) {
  const bool own = doorbells_.empty();
  for (int r = 0; r < size_; ++r) {
    if (own) doorbells_.push_back(arena_->doorbell(r));
    hints_.push_back(arena_->hint(r));
    snapshots_.push_back({arena_->snapshot(r, 0), arena_->snapshot(r, 1)});
    if (r != rank_ && (rank_ == 0 || r == 0)) {
      peers_.push_back(Peer{r, FrameWriter(arena_->ring(rank_, r)), FrameReader(arena_->ring(r, rank_))});
    }
  }
}

void ShmChannel::SayGoodbye(bool job_lost) {
  std::atomic<RankState>& state = arena_->state(rank_);
  if (!HasLeft(state.load())) state.store(job_lost ? RankState::kLeftJobLost : RankState::kLeft);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) Ring(rank);
  }
}

int ShmChannel::Departed() {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && arena_->state(rank).load() == RankState::kLeft) return rank;
  }
  return -1;
}

// ---- bitvectors ----

void ShmChannel::Store(const Arena::Words& area, std::span<const uint64_t> words, std::span<const uint64_t> payload) {
  std::atomic<uint64_t>* to = area.words;
  for (const uint64_t word : words) (to++)->store(word, std::memory_order_relaxed);
  for (const uint64_t word : payload) (to++)->store(word, std::memory_order_relaxed);
  area.count->store(words.size() | uint64_t{payload.size()} << 32, std::memory_order_relaxed);
}

// Bounds both counts, because the peer may have written any value.
ShmChannel::Counts ShmChannel::CountsOf(const Arena::Words& area) const {
  const uint64_t counts = area.count->load(std::memory_order_relaxed);
  return {std::min<size_t>(counts & 0xffffffff, max_words_), std::min<size_t>(counts >> 32, control::kMaxPayloadWords)};
}

void ShmChannel::AndShared(const Arena::Words& area, std::vector<uint64_t>* out) const {
  control::AndInto(Count(area), [&area](size_t i) { return area.words[i].load(std::memory_order_relaxed); }, out);
}

void ShmChannel::SetHint(std::span<const uint64_t> words) {
  // A reader may see a part of the old and a part of the new hint. A round checks everything that the reader concludes
  // from it.
  const Arena::Words& area = hints_[static_cast<size_t>(rank_)];
  Store(area, words.first(std::min(words.size(), max_words_)), {});
  area.round->store(++hint_version_, std::memory_order_release);
}

void ShmChannel::AndHints(std::vector<uint64_t>* out) {
  size_t longest = 1;
  for (const Arena::Words& area : hints_) longest = std::max(longest, Count(area));
  out->assign(longest, ~uint64_t{0});
  for (const Arena::Words& area : hints_) {
    if (area.round->load(std::memory_order_acquire) != 0) {
      AndShared(area, out);
    } else {
      std::fill(out->begin() + 1, out->end(), 0);  // never set: leaves word 0 as it is and has nothing pending
    }
  }
}

void ShmChannel::Publish(uint64_t round, std::span<const uint64_t> words, std::span<const uint64_t> payload) {
  if (words.size() > max_words_) {
    Break(Status(StatusCode::kInternal, "rank " + std::to_string(rank_) + " has " + std::to_string(words.size()) +
                                            " words for round " + std::to_string(round) + ", the arena holds " +
                                            std::to_string(max_words_) + "; lower HOROCACHE_CACHE_CAPACITY"));
    return;
  }
  const Arena::Words& area = snapshots_[static_cast<size_t>(rank_)][round % 2];
  Store(area, words, payload.first(std::min(payload.size(), control::kMaxPayloadWords)));
  area.round->store(round + 1, std::memory_order_release);
}

bool ShmChannel::HasPublished(int rank, uint64_t round) {
  const Arena::Words& area = snapshots_[static_cast<size_t>(rank)][round % 2];
  return area.round->load(std::memory_order_acquire) >= round + 1;
}

bool ShmChannel::AndSnapshots(uint64_t round, std::vector<uint64_t>* out) {
  Result& result = results_[round % 2];
  if (!result.valid || result.round != round) {
    for (size_t r = 0; r < snapshots_.size(); ++r) {
      const uint64_t published = snapshots_[r][round % 2].round->load(std::memory_order_acquire);
      if (published == round + 1) continue;
      if (published > round + 1) {
        Break(Status(StatusCode::kInternal,
                     "rank " + std::to_string(r) + " published round " + std::to_string(published - 1) +
                         " before rank " + std::to_string(rank_) + " had read its round " + std::to_string(round)));
      }
      return false;
    }
    size_t longest = 0;
    for (const auto& pair : snapshots_) longest = std::max(longest, Count(pair[round % 2]));
    result.words.assign(longest, ~uint64_t{0});
    for (const auto& pair : snapshots_) AndShared(pair[round % 2], &result.words);
    result.round = round;
    result.valid = true;
  }
  *out = result.words;
  return true;
}

bool ShmChannel::ReadPublished(int rank, uint64_t round, std::vector<uint64_t>* words, std::vector<uint64_t>* payload) {
  const Arena::Words& area = snapshots_[static_cast<size_t>(rank)][round % 2];
  if (area.round->load(std::memory_order_acquire) != round + 1) return false;
  const Counts counts = CountsOf(area);
  const auto read = [](const std::atomic<uint64_t>* from, size_t count, std::vector<uint64_t>* out) {
    out->resize(count);
    for (size_t i = 0; i < count; ++i) (*out)[i] = from[i].load(std::memory_order_relaxed);
  };
  read(area.words, counts.words, words);
  if (payload != nullptr) read(area.words + counts.words, counts.payload, payload);
  return true;
}

// ---- frames ----

void ShmChannel::BreakPeer(Peer& peer, const Status& why) {
  peer.lost = true;
  Break(Status(why.code(), "rank " + std::to_string(rank_) + ", data that rank " + std::to_string(peer.rank) +
                               " wrote into shared memory: " + why.message()));
}

void ShmChannel::Send(int to, std::string_view frame) {
  if (to < 0 || to >= size_ || frame.size() > kMaxFrameBytes) {
    Break(Status(StatusCode::kInternal, "rank " + std::to_string(rank_) + " cannot send a frame of " +
                                            std::to_string(frame.size()) + " bytes to rank " + std::to_string(to) +
                                            " of " + std::to_string(size_)));
    return;
  }
  if (to == rank_) {
    own_.emplace_back(frame);
    return;
  }
  Peer& peer = RouteTo(to);
  const FrameHeader header{static_cast<uint32_t>(frame.size()), static_cast<uint32_t>(rank_),
                           static_cast<uint32_t>(to)};
  peer.out.Append(header, frame);
  Flush(peer);
}

bool ShmChannel::Flush(Peer& peer) {
  if (peer.lost || peer.out.empty()) return false;
  const StatusOr<bool> moved = peer.out.Flush();
  if (!moved.ok()) {
    BreakPeer(peer, moved.status());
    return false;
  }
  if (*moved) Ring(peer.rank);
  return *moved;
}

// Reads from the peer until a frame for this rank is complete or the ring is empty.
bool ShmChannel::Pump(Peer& peer) {
  bool moved = false;
  while (!peer.lost && !peer.in.ready()) {
    const StatusOr<bool> read = peer.in.Pull();
    if (peer.in.TakeSenderBlocked()) Ring(peer.rank);
    if (!read.ok()) {
      BreakPeer(peer, read.status());
      return moved;
    }
    moved |= *read;
    if (!peer.in.ready() || !Pass(peer)) break;
  }
  return moved;
}

// True if the complete frame was not for this rank; it was forwarded or refused.
bool ShmChannel::Pass(Peer& peer) {
  const FrameHeader header = peer.in.header();
  const auto size = static_cast<uint32_t>(size_);
  const bool good = rank_ == 0 ? header.from == static_cast<uint32_t>(peer.rank) && header.to < size
                               : header.from < size && header.to == static_cast<uint32_t>(rank_);
  if (!good) {
    BreakPeer(peer, Status(StatusCode::kCorrupt, "a frame claims to be from rank " + std::to_string(header.from) +
                                                     " to rank " + std::to_string(header.to)));
    peer.in.Drop();
    return true;
  }
  if (header.to == static_cast<uint32_t>(rank_)) return false;
  Peer& next = RouteTo(static_cast<int>(header.to));
  next.out.Append(header, peer.in.frame());
  peer.in.Drop();
  Flush(next);
  return true;
}

bool ShmChannel::Receive(int* from, std::string* frame) {
  if (!own_.empty()) {
    *from = rank_;
    *frame = std::move(own_.front());
    own_.pop_front();
    return true;
  }
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[(next_ + i) % peers_.size()];
    Pump(peer);
    if (peer.lost || !peer.in.ready()) continue;
    *from = static_cast<int>(peer.in.header().from);
    peer.in.Take(frame);
    next_ = (next_ + i + 1) % peers_.size();
    return true;
  }
  return false;
}

bool ShmChannel::Progress() {
  bool moved = false;
  for (Peer& peer : peers_) {
    moved |= Flush(peer);
    moved |= Pump(peer);
  }
  return moved;
}

}  // namespace

std::unique_ptr<RuntimeChannel> MakeShmChannel(std::shared_ptr<Arena> arena, int rank,
                                               std::vector<Doorbell> doorbells) {
  return std::make_unique<ShmChannel>(std::move(arena), rank, std::move(doorbells));
}

}  // namespace horocache::net
