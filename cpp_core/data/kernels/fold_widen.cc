#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "data/kernels/widen.h"

#define HC_VECTOR_BYTES 0
#include "data/kernels/fold_elements.h"

namespace horocache::data {
namespace {

template <typename T>
T ReadAt(const std::byte* from, int64_t index) {
  T value;
  std::memcpy(&value, from + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void WriteAt(std::byte* to, int64_t index, T value) {
  std::memcpy(to + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

#if defined(__x86_64__)
// Each converts as many elements as fill whole registers and returns their number. Requires HasHalves().
__attribute__((target("avx,f16c"))) int64_t WidenHalves(const std::byte* from, std::byte* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i));
    _mm256_storeu_ps(reinterpret_cast<float*>(to + 4 * i), _mm256_cvtph_ps(halves));
  }
  return i;
}

__attribute__((target("avx,f16c"))) int64_t NarrowHalves(const std::byte* from, std::byte* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 wide = _mm256_loadu_ps(reinterpret_cast<const float*>(from + 4 * i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * i), _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT));
  }
  return i;
}

bool HasHalves() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0 && __builtin_cpu_supports("avx") != 0;
  }();
  return has;
}
#else
int64_t WidenHalves(const std::byte*, std::byte*, int64_t) { return 0; }
int64_t NarrowHalves(const std::byte*, std::byte*, int64_t) { return 0; }
bool HasHalves() { return false; }
#endif

}  // namespace

void Widen(DType dtype, const std::byte* from, std::byte* to, int64_t count) {
  if (dtype == DType::kBfloat16) {
    for (int64_t i = 0; i < count; ++i) WriteAt<uint32_t>(to, i, uint32_t{ReadAt<uint16_t>(from, i)} << 16);
    return;
  }
  for (int64_t i = HasHalves() ? WidenHalves(from, to, count) : 0; i < count; ++i) {
    WriteAt(to, i, HalfToFloat(ReadAt<uint16_t>(from, i)));
  }
}

void Narrow(DType dtype, const std::byte* from, std::byte* to, int64_t count) {
  if (dtype == DType::kBfloat16) {
    for (int64_t i = 0; i < count; ++i) WriteAt(to, i, FloatToBrain(ReadAt<float>(from, i)));
    return;
  }
  for (int64_t i = HasHalves() ? NarrowHalves(from, to, count) : 0; i < count; ++i) {
    WriteAt(to, i, FloatToHalf(ReadAt<float>(from, i)));
  }
}

}  // namespace horocache::data
