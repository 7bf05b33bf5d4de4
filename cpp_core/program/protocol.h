// How a message is encoded in its slot, and how the receiver sees that it has arrived. Simple, LL and LL128 are NCCL's
// protocols.
//
// Note [Protocols]
// Simple: the message lies in a slot, and a separate word counts the messages. The shortest message transfers two cache
// lines; a long message transfers the lines of its bytes.
// LL ("low latency"): each 64-bit word has 32 bits of data and a 32-bit flag that the receiver polls. A short message
// transfers one line; a long message transfers twice the lines of its bytes.
// LL128: each 128 bytes have 120 bytes of data and an 8-byte flag, which is written last.
// Direct: like Simple, but a message whose source lies in shared memory stays there, and the slot holds its location.
// A message's flag value is new at its address, so the receiver cannot mistake an earlier message for it.
//
// Values and functions on memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace horocache::program {

enum class Protocol : uint8_t { kAuto, kSimple, kLL, kLL128, kDirect };
inline constexpr int kNumProtocols = 5;

struct LowLatencyLine {
  static constexpr int64_t kBytes = 8, kData = 4;
  static void Write(std::byte* line, const std::byte* data, int64_t bytes, uint64_t flag);
  // Returns false if the line with this flag has not arrived.
  static bool Read(const std::byte* line, std::byte* data, int64_t bytes, uint64_t flag);
};

struct LowLatency128Line {
  static constexpr int64_t kBytes = 128, kData = 120;
  static void Write(std::byte* line, const std::byte* data, int64_t bytes, uint64_t flag);
  static bool Read(const std::byte* line, std::byte* data, int64_t bytes, uint64_t flag);
};

// Returns the bytes of a slot for messages of `bytes` bytes, a multiple of a cache line. With LL and LL128 an empty
// message has a line, too.
int64_t EncodedBytes(Protocol protocol, int64_t bytes);
// Returns the longest message, in bytes, that fits into a slot of `room` bytes; a multiple of 8.
int64_t DecodedBytes(Protocol protocol, int64_t room);

}  // namespace horocache::program
