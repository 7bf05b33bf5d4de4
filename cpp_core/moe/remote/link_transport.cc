// A transport over a link.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "moe/remote/transport.h"

namespace horocache::moe {
namespace {

struct FrameHead {
  static constexpr uint64_t kGoodbye = ~uint64_t{0};
  uint64_t offset = 0;       // of the bytes that follow, in the receiver's block; kGoodbye: the last frame
  uint64_t word_offset = 0;  // RemoteWrite::kNoWord: none
  uint64_t word = 0;
};

class LinkTransport final : public Transport {
 public:
  LinkTransport(std::unique_ptr<net::Link> link, const std::vector<bool>& peers, RemoteTarget target)
      : link_(std::move(link)), target_(std::move(target)), peers_(peers.size()) {
    for (size_t peer = 0; peer < peers.size(); ++peer) peers_[peer].used = peers[peer];
  }

  ~LinkTransport() override { link_->SayGoodbye(); }

  bool survives_losses() const override { return true; }
  bool sees_arrivals() const override { return true; }

  StatusOr<bool> Carry(const RemoteWrite& write, size_t* sent) override {
    HC_RETURN_IF_ERROR(link_->broken());
    const std::span<const std::byte> payload = write.payload.span();
    for (;;) {
      const auto rest = payload.subspan(*sent);
      const auto piece = rest.first(std::min(rest.size(), link_->max_frame_bytes() - sizeof(FrameHead)));
      const bool last = piece.size() == rest.size();
      const FrameHead head{write.offset + *sent, last ? write.word_offset : RemoteWrite::kNoWord, write.word};
      if (!link_->TrySend(write.peer, std::as_bytes(std::span{&head, 1}), piece)) return false;
      *sent += piece.size();
      if (last) return true;
    }
  }

  StatusOr<bool> Receive() override {
    SendGoodbyes();
    bool arrived = false;
    Status status;
    link_->Receive([&](int from, std::span<const std::byte> frame) {
      if (status.ok()) status = Store(from, frame);
      arrived = true;
    });
    if (status.ok()) status = link_->broken();
    if (!status.ok()) return status;
    return arrived;
  }

  Status SayGoodbye() override {
    for (Peer& peer : peers_) peer.owes_goodbye = peer.used;
    SendGoodbyes();
    return link_->broken();
  }
  bool AllHaveLeft() override {
    return std::ranges::all_of(peers_,
                               [](const Peer& peer) { return !peer.used || (peer.left && !peer.owes_goodbye); });
  }

 private:
  struct Peer {
    bool used = false, left = false, owes_goodbye = false;
  };

  void SendGoodbyes() {
    static constexpr FrameHead kHead{FrameHead::kGoodbye, RemoteWrite::kNoWord, 0};
    for (size_t to = 0; to < peers_.size(); ++to) {
      if (!peers_[to].owes_goodbye) continue;
      peers_[to].owes_goodbye = !link_->TrySend(static_cast<int>(to), std::as_bytes(std::span{&kHead, 1}), {});
    }
  }

  Status Store(int from, std::span<const std::byte> frame) {
    FrameHead head;
    if (frame.size() < sizeof(head)) return Corrupt(from);
    std::memcpy(&head, frame.data(), sizeof(head));
    if (head.offset == FrameHead::kGoodbye) {
      peers_[static_cast<size_t>(from)].left = true;
      return Status::Ok();
    }
    const auto payload = frame.subspan(sizeof(head));
    const size_t bytes = target_.block.size();
    const bool fits = head.offset <= bytes && payload.size() <= bytes - head.offset;
    const bool has_word = head.word_offset != RemoteWrite::kNoWord;
    const bool word_fits =
        head.word_offset % sizeof(uint64_t) == 0 && bytes >= sizeof(uint64_t) && head.word_offset <= bytes - 8;
    if (!fits || (has_word && !word_fits)) return Corrupt(from);
    if (!payload.empty()) std::memcpy(target_.block.data() + head.offset, payload.data(), payload.size());
    if (has_word) {
      auto* const word = reinterpret_cast<uint64_t*>(target_.block.data() + head.word_offset);
      std::atomic_ref(*word).store(head.word, std::memory_order_seq_cst);
    }
    return Status::Ok();
  }

  Status Corrupt(int from) const {
    return {StatusCode::kCorrupt, "rank " + std::to_string(from) + " of a window wrote beside the memory of rank " +
                                      std::to_string(link_->rank()) +
                                      " of it; run the same version of horocache on all hosts"};
  }

  const std::unique_ptr<net::Link> link_;
  const RemoteTarget target_;
  std::vector<Peer> peers_;
};

}  // namespace

std::unique_ptr<Transport> MakeLinkTransport(std::unique_ptr<net::Link> link, const std::vector<bool>& peers,
                                             RemoteTarget target) {
  return std::make_unique<LinkTransport>(std::move(link), peers, std::move(target));
}

}  // namespace horocache::moe
