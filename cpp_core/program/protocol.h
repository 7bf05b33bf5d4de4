// How the bytes of a message and the news that it is there reach the receiver.
//
// Note [Protocols]
// Simple: a message lies in a slot, and a word elsewhere counts the messages. Two cache lines cross for the shortest
// message, and as many as its bytes need for a long one.
// LL ("low latency"): each word of 64 bits has 32 bits of data and 32 of a flag that the receiver waits for: one line
// crosses for a short message, twice the lines for a long one.
// LL128: each 128 bytes have 120 of data and a flag of 8, which is written last.
// Direct: as Simple, but a message whose source lies in shared memory stays there; the slot says where.
// The flag of a message was never before in its place, so what is left of earlier messages is no news.
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
  // False if the line with this flag is not there yet.
  static bool Read(const std::byte* line, std::byte* data, int64_t bytes, uint64_t flag);
};

struct LowLatency128Line {
  static constexpr int64_t kBytes = 128, kData = 120;
  static void Write(std::byte* line, const std::byte* data, int64_t bytes, uint64_t flag);
  static bool Read(const std::byte* line, std::byte* data, int64_t bytes, uint64_t flag);
};

// Bytes that a slot takes for messages of so many bytes; a multiple of a cache line. The shortest has a line as well.
int64_t EncodedBytes(Protocol protocol, int64_t bytes);
// The most bytes of a message for which a slot of `room` bytes has room; a multiple of 8.
int64_t DecodedBytes(Protocol protocol, int64_t room);

}  // namespace horocache::program
