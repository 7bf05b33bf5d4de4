#include "net/shm/message_link.h"

#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace horocache::net {
namespace {

constexpr size_t kSlots = MessageSlots::kCount;
constexpr size_t kBesideBytes = sizeof(MessageSlots::bytes);
constexpr uint32_t kNoChunk = 0xfff;
// Frames per call of Receive. Bounds a call to about 100 us, even while senders keep sending.
constexpr int kFramesPerReceive = 8;

// The fields of a slot's word: 32, 12 and 20 bits. The stamp is the frame's number within its pair, from 1, modulo
// 2^32; 0 in a slot that was never written.
struct SlotWord {
  uint32_t stamp = 0;
  uint32_t chunk = kNoChunk;  // of the sender; kNoChunk: the bytes lie beside the slots
  uint32_t bytes = 0;

  static SlotWord Unpack(uint64_t word) {
    return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word >> 20 & 0xfff),
            static_cast<uint32_t>(word & 0xfffff)};
  }
  uint64_t Pack() const { return uint64_t{stamp} << 32 | uint64_t{chunk} << 20 | bytes; }
};

class ShmLink final : public Link {
 public:
  ShmLink(std::shared_ptr<Arena> arena, int rank);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(outs_.size()); }
  size_t max_frame_bytes() const override { return chunk_bytes_; }
  bool TrySend(int to, std::span<const std::byte> head, std::span<const std::byte> body) override;
  bool Receive(const Sink& sink) override;
  bool must_poll() const override { return false; }
  const Status& broken() const override { return broken_; }

 private:
  struct Out {
    Arena::MessagePath path;
    uint32_t sent = 0;
    uint32_t freed = 0;                    // frames whose slots and chunks are free again
    std::array<uint32_t, kSlots> chunk{};  // by slot: the chunk of each frame that is not freed
    size_t chunks = 0;                     // number of chunks of the frames that are not freed
    bool beside = false;                   // true: one of these frames lies beside the slots
    bool lost = false;
  };
  struct In {
    Arena::MessagePath path;
    uint32_t taken = 0;
    bool lost = false;
  };

  void Free(int to);
  void FreeAll();
  bool Place(int to, std::span<const std::byte> head, std::span<const std::byte> body);
  bool TakeOne(int from, const Sink& sink);
  void RingIfBlocked(int from);
  bool Find(int from, std::span<const std::byte>* frame);
  void Break(int peer, const std::string& what);

  const std::shared_ptr<Arena> arena_;
  const int rank_;
  const size_t chunk_bytes_;
  std::vector<Out> outs_;       // by receiver
  std::vector<In> ins_;         // by sender
  std::vector<uint32_t> free_;  // free chunks; the last one freed, which is in the cache, is used next
  size_t next_ = 0;             // the sender at which Receive begins
  Status broken_;
};

ShmLink::ShmLink(std::shared_ptr<Arena> arena, int rank)
    : arena_(std::move(arena)), rank_(rank), chunk_bytes_(static_cast<size_t>(arena_->layout().message_chunk_bytes)) {
  for (int peer = 0; peer < arena_->layout().ranks; ++peer) {
    outs_.push_back({arena_->message_path(rank_, peer)});
    ins_.push_back({arena_->message_path(peer, rank_)});
  }
  for (int chunk = arena_->layout().message_chunks; chunk-- > 0;) free_.push_back(static_cast<uint32_t>(chunk));
}

void ShmLink::Break(int peer, const std::string& what) {
  outs_[static_cast<size_t>(peer)].lost = true;
  ins_[static_cast<size_t>(peer)].lost = true;
  if (broken_.ok()) {
    broken_ = {StatusCode::kCorrupt, "local rank " + std::to_string(rank_) + ", messages, data that local rank " +
                                         std::to_string(peer) + " wrote into shared memory: " + what};
  }
}

// ---- sending

// Frees the slots and chunks of the frames that the receiver has taken.
void ShmLink::Free(int to) {
  Out& out = outs_[static_cast<size_t>(to)];
  const uint32_t taken = out.path.taken->load(std::memory_order_seq_cst);
  if (taken - out.freed > out.sent - out.freed) {
    Break(to, "it has taken " + std::to_string(taken) + " frames of " + std::to_string(out.sent) + ", after " +
                  std::to_string(out.freed));
    return;
  }
  for (; out.freed != taken; ++out.freed) {
    const uint32_t chunk = out.chunk[out.freed % kSlots];
    if (chunk == kNoChunk) {
      out.beside = false;
      continue;
    }
    free_.push_back(chunk);
    --out.chunks;
  }
}

void ShmLink::FreeAll() {
  for (int to = 0; to < size(); ++to) {
    const Out& out = outs_[static_cast<size_t>(to)];
    if (!out.lost && out.freed != out.sent) Free(to);
  }
}

bool ShmLink::Place(int to, std::span<const std::byte> head, std::span<const std::byte> body) {
  Out& out = outs_[static_cast<size_t>(to)];
  const size_t bytes = head.size() + body.size();
  const bool beside = bytes <= kBesideBytes && !out.beside;
  if (out.lost || out.sent - out.freed == kSlots) return false;
  if (!beside && out.chunks >= free_.size()) return false;
  std::byte* at = out.path.slots->bytes.data();
  uint32_t chunk = kNoChunk;
  if (beside) {
    out.beside = true;
  } else {
    chunk = free_.back();
    free_.pop_back();
    ++out.chunks;
    at = arena_->message_chunk(rank_, static_cast<int>(chunk)).data();
  }
  if (!head.empty()) std::memcpy(at, head.data(), head.size());
  if (!body.empty()) std::memcpy(at + head.size(), body.data(), body.size());
  out.chunk[out.sent % kSlots] = chunk;
  std::atomic<uint64_t>& slot = out.path.slots->words[out.sent % kSlots];
  ++out.sent;
  slot.store(SlotWord{out.sent, chunk, static_cast<uint32_t>(bytes)}.Pack(), std::memory_order_release);
  return true;
}

bool ShmLink::TrySend(int to, std::span<const std::byte> head, std::span<const std::byte> body) {
  if (to < 0 || to >= size() || head.size() + body.size() > chunk_bytes_) {
    if (broken_.ok()) {
      broken_ = {StatusCode::kInternal, "local rank " + std::to_string(rank_) + " cannot send a frame of " +
                                            std::to_string(head.size() + body.size()) + " bytes to local rank " +
                                            std::to_string(to) + " of " + std::to_string(size())};
    }
    return false;
  }
  Out& out = outs_[static_cast<size_t>(to)];
  if (out.lost) return false;
  if (out.freed != out.sent) Free(to);
  if (!Place(to, head, body)) {
    // Sets `blocked` first, then checks again: either the receiver sees the word, or this rank sees the room.
    arena_->message_blocked(rank_).store(1, std::memory_order_seq_cst);
    FreeAll();
    if (!Place(to, head, body)) return false;
  }
  if (to != rank_) arena_->doorbell(to).Ring();
  return true;
}

// ---- receiving

// Finds the sender's next frame; false if it has not arrived. Checks every value that a peer may have written before
// use.
bool ShmLink::Find(int from, std::span<const std::byte>* frame) {
  const In& in = ins_[static_cast<size_t>(from)];
  const std::atomic<uint64_t>& slot = in.path.slots->words[in.taken % kSlots];
  const SlotWord word = SlotWord::Unpack(slot.load(std::memory_order_acquire));
  if (word.stamp != in.taken + 1) {
    const uint32_t last = in.taken + 1 - kSlots;
    if (word.stamp != 0 && word.stamp != last) {
      Break(from, "a slot has stamp " + std::to_string(word.stamp) + " instead of " + std::to_string(last) + " or " +
                      std::to_string(in.taken + 1));
    }
    return false;
  }
  const bool beside = word.chunk == kNoChunk;
  const auto chunks = static_cast<uint32_t>(arena_->layout().message_chunks);
  if (word.bytes > (beside ? kBesideBytes : chunk_bytes_) || (!beside && word.chunk >= chunks)) {
    Break(from, "a slot names " + std::to_string(word.bytes) + " bytes in chunk " + std::to_string(word.chunk));
    return false;
  }
  *frame = beside ? std::span<const std::byte>(in.path.slots->bytes)
                  : arena_->message_chunk(from, static_cast<int>(word.chunk));
  *frame = frame->first(word.bytes);
  return true;
}

bool ShmLink::TakeOne(int from, const Sink& sink) {
  In& in = ins_[static_cast<size_t>(from)];
  std::span<const std::byte> frame;
  if (in.lost || !Find(from, &frame)) return false;
  sink(from, frame);
  ++in.taken;
  in.path.taken->store(in.taken, std::memory_order_seq_cst);
  return true;
}

// Rings once for all frames that were taken from the sender. A sender that is woken for every frame sends one at a
// time.
void ShmLink::RingIfBlocked(int from) {
  std::atomic<uint32_t>& blocked = arena_->message_blocked(from);
  const bool waits =
      blocked.load(std::memory_order_seq_cst) != 0 && blocked.exchange(0, std::memory_order_seq_cst) != 0;
  if (waits && from != rank_) arena_->doorbell(from).Ring();
}

bool ShmLink::Receive(const Sink& sink) {
  int left = kFramesPerReceive;
  const size_t first = next_;
  for (size_t i = 0; i < ins_.size() && left > 0; ++i) {
    const auto from = static_cast<int>((first + i) % ins_.size());
    const int before = left;
    while (left > 0 && TakeOne(from, sink)) --left;
    if (left == before) continue;
    next_ = (static_cast<size_t>(from) + 1) % ins_.size();
    RingIfBlocked(from);
  }
  return left < kFramesPerReceive;
}

}  // namespace

std::unique_ptr<Link> MakeShmLink(std::shared_ptr<Arena> arena, int rank) {
  return std::make_unique<ShmLink>(std::move(arena), rank);
}

}  // namespace horocache::net
