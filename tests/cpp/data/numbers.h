// Random elements of every type, special values included, and a slow reference that shares no code with the kernels.
#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "data/ranks.h"
#include "wire/message.h"

namespace horocache::data::testing {

inline std::vector<DType> AllDTypes() {
  std::vector<DType> dtypes;
  for (int i = 0; i < kNumDTypes; ++i) dtypes.push_back(static_cast<DType>(i));
  return dtypes;
}

inline std::vector<wire::ReduceOp> AllReduceOps() {
  std::vector<wire::ReduceOp> ops;
  for (int i = 0; i < wire::kNumReduceOps; ++i) ops.push_back(static_cast<wire::ReduceOp>(i));
  return ops;
}

// Random bits, which include NaNs with payloads, infinities, denormals and negative zeros.
inline Bytes RandomBits(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes result(bytes);
  for (std::byte& b : result) b = static_cast<std::byte>(random());
  return result;
}

template <typename T>
void Append(Bytes* bytes, T value) {
  const size_t at = bytes->size();
  bytes->resize(at + sizeof(T));
  std::memcpy(bytes->data() + at, &value, sizeof(T));
}

template <typename T>
T Read(const Bytes& bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

// Conversions of half and bfloat16 by arithmetic instead of bit operations.
inline double HalfValue(uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

// Returns the 16-bit pattern nearest to `value`, ties to even. A bisection over the positive patterns finds the two
// neighbours of `value`.
template <typename Decode>
uint16_t Nearest(double value, uint16_t infinity, Decode decode) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  uint16_t low = 0, high = infinity;  // decode(low) <= magnitude
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (decode(middle) <= magnitude ? low : high) = middle;
  }
  if (magnitude == std::numeric_limits<double>::infinity()) return sign | infinity;
  // For rounding, `infinity` counts as the largest finite number plus one more step.
  const double below = decode(low);
  const double above = high == infinity ? 2 * below - decode(static_cast<uint16_t>(low - 1)) : decode(high);
  const bool up = magnitude - below > above - magnitude || (magnitude - below == above - magnitude && (low & 1) != 0);
  return static_cast<uint16_t>(sign | (up ? high : low));
}

inline uint16_t ToHalf(double value) { return Nearest(value, 0x7c00, HalfValue); }
inline double BrainValue(uint16_t bits) {
  float value;
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  std::memcpy(&value, &wide, sizeof(value));
  return static_cast<double>(value);
}
inline uint16_t ToBrain(double value) { return Nearest(value, 0x7f80, BrainValue); }

// Small whole numbers, whose products and sums stay in range, so that references can be exact.
inline Bytes SmallNumbers(DType dtype, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes;
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<int>(random() % 7) - 3;
    switch (dtype) {
      case DType::kUint8:
        Append<uint8_t>(&bytes, static_cast<uint8_t>(value + 3));
        break;
      case DType::kInt8:
        Append<int8_t>(&bytes, static_cast<int8_t>(value));
        break;
      case DType::kInt16:
        Append<int16_t>(&bytes, static_cast<int16_t>(value));
        break;
      case DType::kInt32:
        Append<int32_t>(&bytes, value);
        break;
      case DType::kInt64:
        Append<int64_t>(&bytes, value);
        break;
      case DType::kFloat16:
        Append<uint16_t>(&bytes, ToHalf(value));
        break;
      case DType::kBfloat16:
        Append<uint16_t>(&bytes, ToBrain(value));
        break;
      case DType::kFloat32:
        Append<float>(&bytes, static_cast<float>(value));
        break;
      case DType::kFloat64:
        Append<double>(&bytes, value);
        break;
      case DType::kComplex64:
        Append(&bytes, std::complex<float>(static_cast<float>(value), static_cast<float>(i % 3)));
        break;
      case DType::kComplex128:
        Append(&bytes, std::complex<double>(value, static_cast<double>(i % 3)));
        break;
      case DType::kBool:
        Append<uint8_t>(&bytes, value > 0 ? 1 : 0);
        break;
      case DType::kUint16:
        Append<uint16_t>(&bytes, static_cast<uint16_t>(value + 3));
        break;
      case DType::kUint32:
        Append<uint32_t>(&bytes, static_cast<uint32_t>(value + 3));
        break;
      case DType::kUint64:
        Append<uint64_t>(&bytes, static_cast<uint64_t>(value + 3));
        break;
    }
  }
  return bytes;
}

}  // namespace horocache::data::testing
