#include "program/protocol.h"

#include <algorithm>
#include <cstring>

#include "base/memory.h"

namespace horocache::program {
namespace {

template <typename Word>
std::atomic<Word>* At(std::byte* memory) {
  return reinterpret_cast<std::atomic<Word>*>(memory);
}

template <typename Word>
const std::atomic<Word>* At(const std::byte* memory) {
  return reinterpret_cast<const std::atomic<Word>*>(memory);
}

// Bytes of a line, and the bytes of data in it.
int64_t LineBytes(Protocol protocol) {
  return protocol == Protocol::kLL ? LowLatencyLine::kBytes : LowLatency128Line::kBytes;
}
int64_t LineData(Protocol protocol) {
  return protocol == Protocol::kLL ? LowLatencyLine::kData : LowLatency128Line::kData;
}
bool HasLines(Protocol protocol) { return protocol == Protocol::kLL || protocol == Protocol::kLL128; }

}  // namespace

void LowLatencyLine::Write(std::byte* line, const std::byte* data, int64_t bytes, uint64_t flag) {
  uint32_t value = 0;
  std::memcpy(&value, data, static_cast<size_t>(bytes));
  At<uint64_t>(line)->store(flag << 32 | value, std::memory_order_release);
}

bool LowLatencyLine::Read(const std::byte* line, std::byte* data, int64_t bytes, uint64_t flag) {
  const uint64_t word = At<uint64_t>(line)->load(std::memory_order_acquire);
  if (word >> 32 != flag) return false;
  const auto value = static_cast<uint32_t>(word);
  std::memcpy(data, &value, static_cast<size_t>(bytes));
  return true;
}

void LowLatency128Line::Write(std::byte* line, const std::byte* data, int64_t bytes, uint64_t flag) {
  std::memcpy(line, data, static_cast<size_t>(bytes));
  At<uint64_t>(line + kData)->store(flag, std::memory_order_release);
}

bool LowLatency128Line::Read(const std::byte* line, std::byte* data, int64_t bytes, uint64_t flag) {
  if (At<uint64_t>(line + kData)->load(std::memory_order_acquire) != flag) return false;
  std::memcpy(data, line, static_cast<size_t>(bytes));
  return true;
}

int64_t EncodedBytes(Protocol protocol, int64_t bytes) {
  if (protocol == Protocol::kDirect) return kCacheLine + RoundUp(bytes, kCacheLine);
  if (!HasLines(protocol)) return RoundUp(bytes, kCacheLine);
  const int64_t data = LineData(protocol);
  const int64_t lines = std::max<int64_t>(1, (bytes + data - 1) / data);
  return RoundUp(lines * LineBytes(protocol), kCacheLine);
}

int64_t DecodedBytes(Protocol protocol, int64_t room) {
  room = room / kCacheLine * kCacheLine;
  if (protocol == Protocol::kDirect) return room - kCacheLine;
  return HasLines(protocol) ? room / LineBytes(protocol) * LineData(protocol) : room;
}

}  // namespace horocache::program
