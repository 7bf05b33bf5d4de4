#include "data/kernels/finite.h"

#include <cstring>

namespace horocache::data {
namespace {

// In every format, NaN and infinity have all bits of the exponent set. The check looks at the bits, so that no compiler
// option can optimise it away. The data may be unaligned, so memcpy reads each word, at no cost.
template <typename Word, Word kExponent, int kParts>
NonFinite Find(const std::byte* data, int64_t count) {
  NonFinite found;
  for (int64_t i = 0; i < count; ++i) {
    bool bad = false;
    for (int part = 0; part < kParts; ++part) {
      Word word;
      std::memcpy(&word, data + (i * kParts + part) * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
      bad |= (word & kExponent) == kExponent;
    }
    if (bad && found.count++ == 0) found.first = i;
  }
  return found;
}

constexpr uint32_t kExponent32 = 0x7F80'0000;
constexpr uint64_t kExponent64 = 0x7FF0'0000'0000'0000;

}  // namespace

NonFinite FindNonFinite(DType dtype, const std::byte* data, int64_t count) {
  switch (dtype) {
    case DType::kFloat16:
      return Find<uint16_t, 0x7C00, 1>(data, count);
    case DType::kBfloat16:
      return Find<uint16_t, 0x7F80, 1>(data, count);
    case DType::kFloat32:
      return Find<uint32_t, kExponent32, 1>(data, count);
    case DType::kFloat64:
      return Find<uint64_t, kExponent64, 1>(data, count);
    case DType::kComplex64:
      return Find<uint32_t, kExponent32, 2>(data, count);
    case DType::kComplex128:
      return Find<uint64_t, kExponent64, 2>(data, count);
    default:
      return {};
  }
}

}  // namespace horocache::data
