// Part of fold_body.h, which describes how it is compiled: the element types, and how one element or a register of
// elements is read and written. No include guard on purpose.

namespace horocache::data {
namespace {

#define HC_INLINE inline __attribute__((always_inline))

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};
struct Bool {
  uint8_t byte;
};
template <typename R>
struct Complex {
  R re, im;
};

template <typename A, typename B>
inline constexpr bool kSame = false;
template <typename A>
inline constexpr bool kSame<A, A> = true;

template <typename To, typename From>
HC_INLINE To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

// ---- element types: how an element is read into its accumulator and written back ----

HC_INLINE float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return BitCast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return BitCast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Zero or denormal: mantissa * 2^-24 is exact.
  const float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
  return BitCast<float>(BitCast<uint32_t>(value) | sign);
}

// Rounds to nearest even. Requires that a NaN is the canonical one.
HC_INLINE uint16_t FloatToHalf(float value) {
  const uint32_t bits = BitCast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // Denormal or zero: the addition rounds to a multiple of 2^-24, to nearest even.
    const float rounded = BitCast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (BitCast<uint32_t>(rounded) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

// Rounds to nearest even. Requires that a NaN is the canonical one: it has no low bits, so that rounding cannot change
// it.
HC_INLINE uint16_t FloatToBrain(float value) {
  const uint32_t bits = BitCast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <typename T>
struct AccumulatorOf {
  using Type = T;
};
template <>
struct AccumulatorOf<Half> {
  using Type = float;
};
template <>
struct AccumulatorOf<Brain> {
  using Type = float;
};
template <>
struct AccumulatorOf<Bool> {
  using Type = uint8_t;
};
template <typename T>
using Accumulator = typename AccumulatorOf<T>::Type;

template <typename A>
inline constexpr bool kReal = kSame<A, float> || kSame<A, double>;
template <typename A>
inline constexpr bool kComplex = kSame<A, Complex<float>> || kSame<A, Complex<double>>;

template <typename A>
HC_INLINE A CanonicalNan() {
  if constexpr (kSame<A, float>) return BitCast<float>(0x7fc00000u);
  if constexpr (kSame<A, double>) return BitCast<double>(uint64_t{0x7ff8000000000000u});
}

// One element at a time: for tails, scaled integers, complex products, and everything in the scalar kernels.
template <typename T>
struct Scalar {
  using Value = Accumulator<T>;
  static constexpr int kCount = 1;
  static constexpr int kUnroll = 1;

  static HC_INLINE Value Load(const std::byte* at) {
    T element;
    __builtin_memcpy(&element, at, sizeof(T));
    if constexpr (kSame<T, Half>) {
      return HalfToFloat(element.bits);
    } else if constexpr (kSame<T, Brain>) {
      return BitCast<float>(static_cast<uint32_t>(element.bits) << 16);
    } else if constexpr (kSame<T, Bool>) {
      return element.byte != 0 ? 1 : 0;
    } else {
      return element;
    }
  }

  static HC_INLINE T Narrow(Value value) {
    if constexpr (kSame<T, Half>) {
      return Half{FloatToHalf(value)};
    } else if constexpr (kSame<T, Brain>) {
      return Brain{FloatToBrain(value)};
    } else if constexpr (kSame<T, Bool>) {
      return Bool{value};
    } else {
      return value;
    }
  }

  static HC_INLINE void Store(std::byte* at, Value value, bool /*stream*/) {
    const T element = Narrow(value);
    __builtin_memcpy(at, &element, sizeof(T));
  }
};

#if HC_VECTOR_BYTES > 0
// As many elements as fit into one register of accumulators.
template <typename T>
struct Vector {
  using Element = Accumulator<T>;
  typedef Element Value __attribute__((vector_size(HC_VECTOR_BYTES)));
  static constexpr int kCount = HC_VECTOR_BYTES / sizeof(Element);
  static constexpr int kUnroll = 4;
  typedef uint32_t Words __attribute__((vector_size(HC_VECTOR_BYTES)));
  typedef uint16_t Shorts __attribute__((vector_size(HC_VECTOR_BYTES / 2)));

  static HC_INLINE Value Load(const std::byte* at) {
    if constexpr (kSame<T, Half>) {
      return LoadHalf(at);
    } else if constexpr (kSame<T, Brain>) {
      Shorts narrow;
      __builtin_memcpy(&narrow, at, sizeof(narrow));
      return (Value)(__builtin_convertvector(narrow, Words) << 16);
    } else {
      Value value;
      __builtin_memcpy(&value, at, sizeof(value));
      if constexpr (kSame<T, Bool>) value = (Value)(value != 0) & 1;
      return value;
    }
  }

  // With `stream` it writes around the caches; `at` must then be a multiple of the number of bytes stored.
  static HC_INLINE void Store(std::byte* at, Value value, bool stream) {
    if constexpr (kSame<T, Half>) {
      Write(at, NarrowHalf(value), stream);
    } else if constexpr (kSame<T, Brain>) {
      const Words bits = (Words)value;
      Write(at, __builtin_convertvector((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, Shorts), stream);
    } else {
      Write(at, value, stream);
    }
  }

 private:
  template <typename Stored>
  static HC_INLINE void Write(std::byte* at, Stored stored, bool stream) {
    if (!stream) {
      __builtin_memcpy(at, &stored, sizeof(stored));
    } else if constexpr (sizeof(stored) == 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(at), (__m128i)stored);
    } else if constexpr (sizeof(stored) == 32) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(at), (__m256i)stored);
#if HC_VECTOR_BYTES == 64
    } else {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(at), (__m512i)stored);
#endif
    }
  }

#if HC_VECTOR_BYTES == 64
  // These use the masked intrinsics with a full mask: GCC 12 mistakes the plain ones for reads of an uninitialised
  // register.
  static HC_INLINE Value LoadHalf(const std::byte* at) {
    return (Value)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  static HC_INLINE __m256i NarrowHalf(Value value) {
    return _mm512_maskz_cvtps_ph(0xffff, (__m512)value, _MM_FROUND_TO_NEAREST_INT);
  }
#else
  static HC_INLINE Value LoadHalf(const std::byte* at) {
    return (Value)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
  static HC_INLINE __m128i NarrowHalf(Value value) { return _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT); }
#endif
};
#endif  // HC_VECTOR_BYTES > 0

}  // namespace
}  // namespace horocache::data
