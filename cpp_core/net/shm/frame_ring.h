// The two ends of one of the arena's frame rings. A frame passes in pieces, each as large as the free space.
//
// A frame is a header (length, from, to; 4 bytes each in the host's byte order) and its bytes. Every value that the
// peer may have written is checked before it is used.
//
// Threads: on each side, only the thread that holds the progress lock.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "net/shm/arena.h"

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

  // Queues a frame; writes nothing yet.
  void Append(const FrameHeader& header, std::string_view frame);
  // Writes as many bytes as there is room for; true if any bytes moved. kCorrupt if the receiver's position is
  // impossible.
  StatusOr<bool> Flush();
  bool empty() const { return sent_ == queue_.size(); }

 private:
  Arena::Ring ring_;
  uint64_t head_ = 0;
  std::string queue_;  // whole frames; the first `sent_` bytes are written
  size_t sent_ = 0;
};

class FrameReader {
 public:
  explicit FrameReader(Arena::Ring ring);

  // Reads until one frame is complete or the ring is empty; true if any bytes moved. kCorrupt if a position or a length
  // is impossible.
  StatusOr<bool> Pull();
  bool ready() const { return ready_; }
  const FrameHeader& header() const { return header_; }
  std::string_view frame() const { return body_; }
  // Swaps the frame with *frame, so that both buffers are reused.
  void Take(std::string* frame);
  void Drop();
  // True if the reader has made room for a waiting sender since the last call.
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
