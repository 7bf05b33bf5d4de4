// Small floating-point types: their values as float, and float rounded to them, to the nearest, ties to even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace fake_gpu {

// A type with `Exponent` bits of exponent and `Mantissa` bits of mantissa. kFinite: as float8 e4m3, which has no
// infinity and one pattern for NaN.
template <int Exponent, int Mantissa, bool kFinite = false>
struct SmallFloat {
  static constexpr int kBias = (1 << (Exponent - 1)) - 1;
  static constexpr uint32_t kLargestExponent = (1u << Exponent) - 1;
  static constexpr uint32_t kMantissaMask = (1u << Mantissa) - 1;
  static constexpr uint32_t kSign = 1u << (Exponent + Mantissa);
  static constexpr uint32_t kInfinity = kLargestExponent << Mantissa;
  static constexpr uint32_t kNan = kSign - 1;
  static constexpr uint32_t kLargest = kFinite ? kNan - 1 : kInfinity - 1;

  static float Value(uint32_t bits) {
    const float sign = (bits & kSign) != 0 ? -1.0F : 1.0F;
    const uint32_t magnitude = bits & (kSign - 1);
    const uint32_t exponent = magnitude >> Mantissa;
    const uint32_t mantissa = magnitude & kMantissaMask;
    if (kFinite ? magnitude == kNan : magnitude > kInfinity) return std::nanf("");
    if (!kFinite && magnitude == kInfinity) return sign * HUGE_VALF;
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), 1 - kBias - Mantissa);
    return sign *
           std::ldexp(static_cast<float>(mantissa | (1u << Mantissa)), static_cast<int>(exponent) - kBias - Mantissa);
  }

  static uint32_t Bits(float value) {
    if (std::isnan(value)) return kNan;
    const uint32_t sign = std::signbit(value) ? kSign : 0;
    const float magnitude = std::fabs(value);
    if (magnitude == 0) return sign;
    if (std::isinf(magnitude)) return sign | (kFinite ? kLargest : kInfinity);
    int exponent = 0;
    std::frexp(magnitude, &exponent);  // magnitude is in [0.5, 1) times 2 to the exponent
    const int lowest = std::max(exponent - 1, 1 - kBias) - Mantissa;  // weight of the last bit
    const auto units = static_cast<uint64_t>(std::nearbyint(std::ldexp(static_cast<double>(magnitude), -lowest)));
    // With the hidden bit, a carry of the rounding goes into the exponent by itself.
    const int64_t step = lowest + Mantissa + kBias - 1;
    const uint64_t bits = (static_cast<uint64_t>(step) << Mantissa) + units;
    if (bits > kLargest) return sign | (kFinite ? kLargest : kInfinity);
    return sign | static_cast<uint32_t>(bits);
  }
};

using Half = SmallFloat<5, 10>;
using Bfloat = SmallFloat<8, 7>;
using Float8E4M3 = SmallFloat<4, 3, true>;
using Float8E5M2 = SmallFloat<5, 2>;

}  // namespace fake_gpu
