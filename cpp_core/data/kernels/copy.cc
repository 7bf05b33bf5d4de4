#include "data/kernels/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "base/memory.h"

namespace horocache::data {

#if defined(__x86_64__)
namespace {

// `to` and `bytes` are multiples of a cache line.
void StreamLines(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kCacheLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + i);
    auto* target = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
}

}  // namespace

void Copy(std::byte* to, const std::byte* from, size_t bytes, bool stream) {
  if (!stream || bytes < kStreamBytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  const size_t head = (kCacheLine - reinterpret_cast<uintptr_t>(to) % kCacheLine) % kCacheLine;
  const size_t body = (bytes - head) / kCacheLine * kCacheLine;
  std::memcpy(to, from, head);
  StreamLines(to + head, from + head, body);
  std::memcpy(to + head + body, from + head + body, bytes - head - body);
  _mm_sfence();
}
#else
void Copy(std::byte* to, const std::byte* from, size_t bytes, bool /*stream*/) { std::memcpy(to, from, bytes); }
#endif

}  // namespace horocache::data
