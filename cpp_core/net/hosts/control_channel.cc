#include "net/hosts/control_channel.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "net/bootstrap/handshake.h"
#include "net/shm/frame_ring.h"

namespace horocache::net {
namespace {

constexpr uint32_t kToAll = ~0u;  // in place of `to`: the set is lost, for every rank of the host

// Precedes a frame inside a host, and each piece of a frame between hosts.
struct Envelope {
  uint32_t from = 0;
  uint32_t to = 0;
};
struct PieceHeader {
  Envelope envelope;
  uint32_t total = 0;   // bytes of the frame
  uint32_t offset = 0;  // position of the piece in the frame, in bytes
};

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }
template <typename T>
std::span<const std::byte> BytesOf(const T& value)
  requires std::is_trivially_copyable_v<T>
{
  return std::as_bytes(std::span(&value, 1));
}

class HostsChannel final : public RuntimeChannel {
 public:
  HostsChannel(HostsConfig config, std::unique_ptr<RuntimeChannel> local, std::unique_ptr<Link> link);

  int rank() const override { return config_.rank; }
  int size() const override { return static_cast<int>(config_.host_of.size()); }

  // No rank sees the bitvectors of all ranks; RelayAgreement::AndSubtree (control/strategies/relay.cc) computes the
  // AND.
  void SetHint(std::span<const uint64_t>) override {}
  void AndHints(std::vector<uint64_t>* out) override { out->assign(1, ~uint64_t{0}); }
  bool AndSnapshots(uint64_t, std::vector<uint64_t>*) override { return false; }

  void Publish(uint64_t round, std::span<const uint64_t> words, std::span<const uint64_t> payload) override {
    local_->Publish(round, words, payload);
  }
  bool HasPublished(int rank, uint64_t round) override { return IsHere(rank) && local_->HasPublished(At(rank), round); }
  bool SharesBitvector(int rank) const override { return IsHere(rank); }
  bool ReadPublished(int rank, uint64_t round, std::vector<uint64_t>* words, std::vector<uint64_t>* payload) override {
    return IsHere(rank) && local_->ReadPublished(At(rank), round, words, payload);
  }

  void Send(int to, std::string_view frame) override;
  bool Receive(int* from, std::string* frame) override;
  bool Progress() override;
  std::vector<int> NotRunning(int64_t now_ns, int64_t for_ns) const override;
  void Ring(int rank) override {
    if (IsHere(rank)) local_->Ring(At(rank));
  }

  const Status& broken() const override { return broken_.ok() ? local_->broken() : broken_; }
  void NotifyLost(const Status& why) override;
  bool must_poll() const override { return link_ != nullptr && link_->must_poll(); }
  void SayGoodbye(bool job_lost) override {
    local_->SayGoodbye(job_lost);
    if (link_ != nullptr) link_->SayGoodbye();
  }
  int Departed() override {
    const int departed = local_->Departed();
    for (int rank = 0; rank < size(); ++rank) {
      if (departed >= 0 && IsHere(rank) && At(rank) == departed) return rank;
    }
    return -1;
  }

 private:
  // A frame to another host, which is sent in pieces.
  struct Outgoing {
    Envelope envelope;
    std::string frame;
    size_t sent = 0;
  };
  struct Host {
    std::deque<Outgoing> out;
    std::string in;  // the pieces that have arrived of one frame
  };
  struct Arrived {
    int from;
    std::string frame;
  };

  int HostOf(int rank) const { return config_.host_of[static_cast<size_t>(rank)]; }
  bool IsHere(int rank) const { return HostOf(rank) == own_host_; }
  int At(int rank) const { return local_of_[static_cast<size_t>(rank)]; }
  bool IsRank(uint32_t rank) const { return rank < config_.host_of.size(); }

  void Pass(Envelope envelope, std::string_view frame);
  bool TakeLocal();
  void Handle(Envelope envelope, std::string_view frame);
  void OnPiece(int host, std::span<const std::byte> piece);
  bool Flush();
  void SendLocal(int to, Envelope envelope, std::string_view frame);
  void Break(Status why) {
    if (broken_.ok()) broken_ = std::move(why);
  }
  void BreakBy(const std::string& who, const std::string& what) {
    Break({StatusCode::kCorrupt, "rank " + std::to_string(config_.rank) + " got from " + who + " " + what});
  }

  const HostsConfig config_;
  const std::unique_ptr<RuntimeChannel> local_;
  const std::unique_ptr<Link> link_;
  const int own_host_;
  std::vector<int> local_of_;  // by rank: its number on its host
  std::vector<int> here_;      // ranks of this host
  std::vector<Host> hosts_;    // by number of host; used on leaders
  std::deque<Arrived> arrived_;
  std::string scratch_;
  bool reported_ = false;
  Status broken_;
};

HostsChannel::HostsChannel(HostsConfig config, std::unique_ptr<RuntimeChannel> local, std::unique_ptr<Link> link)
    : config_(std::move(config)),
      local_(std::move(local)),
      link_(std::move(link)),
      own_host_(config_.host_of[static_cast<size_t>(config_.rank)]) {
  std::vector<int> count;
  for (size_t rank = 0; rank < config_.host_of.size(); ++rank) {
    const auto host = static_cast<size_t>(config_.host_of[rank]);
    count.resize(std::max(count.size(), host + 1));
    local_of_.push_back(count[host]++);
    if (config_.host_of[rank] == own_host_) here_.push_back(static_cast<int>(rank));
  }
  hosts_.resize(count.size());
}

void HostsChannel::Send(int to, std::string_view frame) {
  if (to < 0 || to >= size() || frame.size() > kMaxFrameBytes) {
    Break({StatusCode::kInternal, "rank " + std::to_string(config_.rank) + " cannot send a frame of " +
                                      std::to_string(frame.size()) + " bytes to rank " + std::to_string(to) + " of " +
                                      std::to_string(size())});
    return;
  }
  Pass({static_cast<uint32_t>(config_.rank), static_cast<uint32_t>(to)}, frame);
}

std::vector<int> HostsChannel::NotRunning(int64_t now_ns, int64_t for_ns) const {
  std::vector<int> ranks;
  if (config_.host_monitor == nullptr) return ranks;
  for (const int rank : config_.host_monitor->NotRunning(now_ns, for_ns)) {
    const auto found = std::ranges::lower_bound(config_.ranks, rank);
    if (found != config_.ranks.end() && *found == rank)
      ranks.push_back(static_cast<int>(found - config_.ranks.begin()));
  }
  return ranks;
}

// Moves a frame one step towards its receiver.
void HostsChannel::Pass(Envelope envelope, std::string_view frame) {
  const int to = static_cast<int>(envelope.to);
  if (to == config_.rank) {
    arrived_.push_back({static_cast<int>(envelope.from), std::string(frame)});
  } else if (IsHere(to)) {
    SendLocal(to, envelope, frame);
  } else if (link_ == nullptr) {
    SendLocal(here_[0], envelope, frame);
  } else {
    hosts_[static_cast<size_t>(HostOf(to))].out.push_back({envelope, std::string(frame)});
  }
}

void HostsChannel::SendLocal(int to, Envelope envelope, std::string_view frame) {
  scratch_.assign(reinterpret_cast<const char*>(&envelope), sizeof(envelope));
  scratch_.append(frame);
  local_->Send(At(to), scratch_);
  local_->Ring(At(to));
}

bool HostsChannel::Receive(int* from, std::string* frame) {
  while (arrived_.empty() && TakeLocal()) {
  }
  if (arrived_.empty()) return false;
  *from = arrived_.front().from;
  *frame = std::move(arrived_.front().frame);
  arrived_.pop_front();
  return true;
}

// Takes one frame that arrived inside the host, and delivers or forwards it; false if there is none.
bool HostsChannel::TakeLocal() {
  int from = -1;
  std::string frame;
  if (!local_->Receive(&from, &frame)) return false;
  const std::string who = "rank " + std::to_string(here_[static_cast<size_t>(from)]);
  Envelope envelope;
  if (frame.size() < sizeof(envelope)) {
    BreakBy(who, "a frame of " + std::to_string(frame.size()) + " bytes");
    return true;
  }
  std::memcpy(&envelope, frame.data(), sizeof(envelope));
  // The leader forwards frames of all ranks; other ranks send only their own.
  const bool good = IsRank(envelope.from) && (envelope.to == kToAll || IsRank(envelope.to)) &&
                    (from == 0 || here_[static_cast<size_t>(from)] == static_cast<int>(envelope.from));
  if (!good) {
    BreakBy(who, "a frame that claims to be from rank " + std::to_string(envelope.from) + " to rank " +
                     std::to_string(envelope.to));
    return true;
  }
  Handle(envelope, std::string_view(frame).substr(sizeof(envelope)));
  return true;
}

void HostsChannel::Handle(Envelope envelope, std::string_view frame) {
  if (envelope.to != kToAll) {
    Pass(envelope, frame);
    return;
  }
  const std::optional<Status> why = DecodeStatus(frame);
  if (!why || why->ok()) {
    BreakBy("rank " + std::to_string(envelope.from), "word of a loss that does not decode");
  } else {
    NotifyLost(*why);
    Break(*why);
  }
}

void HostsChannel::OnPiece(int host, std::span<const std::byte> piece) {
  std::string& in = hosts_[static_cast<size_t>(host)].in;
  PieceHeader header;
  const auto bad = [&](const std::string& what) { BreakBy("the leader of host " + std::to_string(host), what); };
  if (piece.size() < sizeof(header)) return bad("a piece of " + std::to_string(piece.size()) + " bytes");
  std::memcpy(&header, piece.data(), sizeof(header));
  const size_t bytes = piece.size() - sizeof(header);
  const Envelope& envelope = header.envelope;
  const bool addressed = IsRank(envelope.from) && HostOf(static_cast<int>(envelope.from)) == host &&
                         (envelope.to == kToAll || (IsRank(envelope.to) && IsHere(static_cast<int>(envelope.to))));
  if (!addressed || header.total > kMaxFrameBytes || header.offset != in.size() ||
      bytes > header.total - header.offset) {
    return bad("a piece of " + std::to_string(bytes) + " bytes at " + std::to_string(header.offset) + " of " +
               std::to_string(header.total) + " from rank " + std::to_string(envelope.from) + " to rank " +
               std::to_string(envelope.to));
  }
  in.append(reinterpret_cast<const char*>(piece.data()) + sizeof(header), bytes);
  if (in.size() < header.total) return;
  const std::string frame = std::exchange(in, {});
  Handle(envelope, frame);
}

bool HostsChannel::Flush() {
  bool moved = false;
  for (size_t host = 0; host < hosts_.size(); ++host) {
    std::deque<Outgoing>& out = hosts_[host].out;
    while (!out.empty()) {
      Outgoing& front = out.front();
      const PieceHeader header{front.envelope, static_cast<uint32_t>(front.frame.size()),
                               static_cast<uint32_t>(front.sent)};
      const size_t bytes = std::min(front.frame.size() - front.sent, link_->max_frame_bytes() - sizeof(header));
      const std::string_view piece = std::string_view(front.frame).substr(front.sent, bytes);
      if (!link_->TrySend(static_cast<int>(host), BytesOf(header), BytesOf(piece))) break;
      moved = true;
      front.sent += bytes;
      if (front.sent == front.frame.size()) out.pop_front();
    }
  }
  return moved;
}

bool HostsChannel::Progress() {
  bool moved = local_->Progress();
  if (link_ == nullptr) return moved;
  while (TakeLocal()) moved = true;
  moved |= link_->Receive([this](int host, std::span<const std::byte> piece) { OnPiece(host, piece); });
  moved |= Flush();
  if (broken_.ok() && !link_->broken().ok()) {
    Break(link_->broken());
    NotifyLost(broken_);
  }
  return moved;
}

// A leader informs the other leaders and the ranks of its host; another rank informs its leader.
void HostsChannel::NotifyLost(const Status& why) {
  if (std::exchange(reported_, true)) return;
  const Envelope envelope{static_cast<uint32_t>(config_.rank), kToAll};
  const std::string status = EncodeStatus(why);
  if (link_ == nullptr) {
    SendLocal(here_[0], envelope, status);
  } else {
    for (size_t i = 1; i < here_.size(); ++i) SendLocal(here_[i], envelope, status);
    for (size_t host = 0; host < hosts_.size(); ++host) {
      if (static_cast<int>(host) != own_host_) hosts_[host].out.push_back({envelope, status});
    }
    Flush();
  }
  local_->Progress();
}

}  // namespace

std::unique_ptr<RuntimeChannel> MakeHostsChannel(HostsConfig config, std::unique_ptr<RuntimeChannel> local,
                                                 std::unique_ptr<Link> link) {
  return std::make_unique<HostsChannel>(std::move(config), std::move(local), std::move(link));
}

}  // namespace horocache::net
