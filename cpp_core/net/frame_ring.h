// The two ends of a byte ring of an arena: frames in, frames out, in chunks as large as there is room.
//
// A frame is a header (length, from, to; 4 bytes each in the host's order) and its bytes. Every value that the peer may
// have written is checked before it is used.
//
// Role: coordinator, one side each.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "net/arena.h"

namespace horocache::net {

inline constexpr uint32_t kMaxFrameBytes = 256u << 20;

struct FrameHeader {
  uint32_t length = 0;
  uint32_t from = 0;
  uint32_t to = 0;
};

class FrameWriter {
 public:
  explicit FrameWriter(Arena::Ring ring);

  // Queues; writes nothing yet.
  void Append(const FrameHeader& header, std::string_view frame);
  // Writes as far as there is room; true if any bytes moved. kCorrupt if the receiver's position is impossible.
  StatusOr<bool> Flush();
  bool empty() const { return sent_ == queue_.size(); }

 private:
  Arena::Ring ring_;
  uint64_t head_ = 0;
  std::string queue_;  // bytes of whole frames, the first `sent_` of them written
  size_t sent_ = 0;
};

class FrameReader {
 public:
  explicit FrameReader(Arena::Ring ring);

  // Reads until one frame is complete or the ring is empty; true if any bytes moved. kCorrupt: impossible position or
  // length.
  StatusOr<bool> Pull();
  bool ready() const { return ready_; }
  const FrameHeader& header() const { return header_; }
  std::string_view frame() const { return body_; }
  // Swaps the frame out, so that its buffer and the caller's are used in turns.
  void Take(std::string* frame);
  void Drop();
  // True once after the sender has been found waiting for the room that was made.
  bool TakeSenderBlocked();

 private:
  Status ReadHeader(size_t available);
  void Copy(char* out, size_t count);

  Arena::Ring ring_;
  uint64_t tail_ = 0;
  std::array<char, sizeof(FrameHeader)> raw_{};
  size_t raw_got_ = 0;
  FrameHeader header_;
  std::string body_;
  bool ready_ = false;
  bool sender_blocked_ = false;
};

}  // namespace horocache::net
