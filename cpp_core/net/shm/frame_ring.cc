#include "net/shm/frame_ring.h"

#include <algorithm>
#include <cstring>

namespace horocache::net {
namespace {

constexpr size_t kKeepBytes = 1 << 20;  // larger buffers are freed when they are empty

Status BadPositions(uint64_t head, uint64_t tail, size_t capacity) {
  return Status(StatusCode::kCorrupt, "a frame ring of " + std::to_string(capacity) + " bytes has head " +
                                          std::to_string(head) + " and tail " + std::to_string(tail));
}

}  // namespace

FrameWriter::FrameWriter(Arena::Ring ring) : ring_(ring), head_(ring.head->load(std::memory_order_relaxed)) {}

void FrameWriter::Append(const FrameHeader& header, std::string_view frame) {
  if (sent_ > queue_.size() / 2) {
    queue_.erase(0, sent_);
    sent_ = 0;
  }
  queue_.append(reinterpret_cast<const char*>(&header), sizeof(header));
  queue_.append(frame);
}

StatusOr<bool> FrameWriter::Flush() {
  bool moved = false;
  while (!empty()) {
    uint64_t tail = ring_.tail->load(std::memory_order_acquire);
    if (head_ - tail == ring_.capacity) {
      // Sets `blocked` first, then checks again: either the receiver sees the flag, or the sender sees the room.
      ring_.blocked->store(1, std::memory_order_seq_cst);
      tail = ring_.tail->load(std::memory_order_seq_cst);
      if (head_ - tail == ring_.capacity) return moved;
    }
    if (head_ - tail > ring_.capacity) return BadPositions(head_, tail, ring_.capacity);
    const size_t at = head_ % ring_.capacity;
    const size_t room = ring_.capacity - (head_ - tail);
    const size_t count = std::min({room, ring_.capacity - at, queue_.size() - sent_});
    std::memcpy(ring_.bytes + at, queue_.data() + sent_, count);
    sent_ += count;
    head_ += count;
    ring_.head->store(head_, std::memory_order_release);
    moved = true;
  }
  queue_.clear();
  sent_ = 0;
  if (queue_.capacity() > kKeepBytes) queue_.shrink_to_fit();
  return moved;
}

FrameReader::FrameReader(Arena::Ring ring) : ring_(ring), tail_(ring.tail->load(std::memory_order_relaxed)) {}

void FrameReader::Copy(char* out, size_t count) {
  const size_t at = tail_ % ring_.capacity;
  const size_t first = std::min(count, ring_.capacity - at);
  std::memcpy(out, ring_.bytes + at, first);
  std::memcpy(out + first, ring_.bytes, count - first);
  tail_ += count;
}

Status FrameReader::ReadHeader(size_t available) {
  const size_t count = std::min(available, raw_.size() - raw_got_);
  Copy(raw_.data() + raw_got_, count);
  raw_got_ += count;
  if (raw_got_ < raw_.size()) return Status::Ok();
  std::memcpy(&header_, raw_.data(), sizeof(header_));
  if (header_.length <= kMaxFrameBytes) return Status::Ok();
  return Status(StatusCode::kCorrupt, "a frame announces " + std::to_string(header_.length) +
                                          " bytes; no frame has more than " + std::to_string(kMaxFrameBytes));
}

StatusOr<bool> FrameReader::Pull() {
  bool moved = false;
  while (!ready_) {
    const uint64_t head = ring_.head->load(std::memory_order_acquire);
    const uint64_t available = head - tail_;
    if (available > ring_.capacity) return BadPositions(head, tail_, ring_.capacity);
    if (available > 0 && raw_got_ < raw_.size()) {
      HC_RETURN_IF_ERROR(ReadHeader(available));
    } else if (available > 0) {
      // The buffer grows with the bytes that have arrived, not with the announced length.
      const size_t got = body_.size();
      const size_t count = std::min<size_t>(available, header_.length - got);
      body_.resize(got + count);
      Copy(body_.data() + got, count);
    }
    ready_ = raw_got_ == raw_.size() && body_.size() == header_.length;
    if (available == 0) break;
    ring_.tail->store(tail_, std::memory_order_seq_cst);
    moved = true;
    if (ring_.blocked->load(std::memory_order_seq_cst) != 0 &&
        ring_.blocked->exchange(0, std::memory_order_seq_cst) != 0) {
      sender_blocked_ = true;
    }
  }
  return moved;
}

void FrameReader::Take(std::string* frame) {
  frame->swap(body_);
  Drop();
}

void FrameReader::Drop() {
  body_.clear();
  if (body_.capacity() > kKeepBytes) body_.shrink_to_fit();
  raw_got_ = 0;
  ready_ = false;
}

bool FrameReader::TakeSenderBlocked() {
  const bool blocked = sender_blocked_;
  sender_blocked_ = false;
  return blocked;
}

}  // namespace horocache::net
