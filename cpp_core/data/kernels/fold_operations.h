// Part of fold_body.h, which describes how it is compiled: scaling, and the operations on one value or on a register of
// values. No include guard on purpose.

namespace horocache::data {
namespace {

// ---- operations, on one value or on a register of values; A is the type of one value ----

template <typename A>
struct UnsignedOf {
  using Type = A;
};
// clang-format off
template <> struct UnsignedOf<int8_t> { using Type = uint8_t; };
template <> struct UnsignedOf<int16_t> { using Type = uint16_t; };
template <> struct UnsignedOf<int32_t> { using Type = uint32_t; };
template <> struct UnsignedOf<int64_t> { using Type = uint64_t; };
// clang-format on

// The type in which integers are added and multiplied: unsigned, so that the result wraps. A single value is at least
// 32 bits wide, so that it is not promoted to a signed type.
template <typename A, typename Value>
struct WrappingOf {
#if HC_VECTOR_BYTES > 0
  typedef typename UnsignedOf<A>::Type Type __attribute__((vector_size(HC_VECTOR_BYTES)));
#endif
};
template <typename A>
struct WrappingOf<A, A> {
  template <typename U, bool kSmall>
  struct Wide {
    using Type = U;
  };
  template <typename U>
  struct Wide<U, true> {
    using Type = uint32_t;
  };
  using Type = typename Wide<typename UnsignedOf<A>::Type, (sizeof(A) < 4)>::Type;
};

struct Sum {
  template <typename A, typename Value>
  static HC_INLINE Value Apply(Value a, Value b) {
    if constexpr (kReal<A>) {
      return a + b;
    } else {
      using W = typename WrappingOf<A, Value>::Type;
      return (Value)((W)a + (W)b);
    }
  }
};

struct Product {
  template <typename A, typename Value>
  static HC_INLINE Value Apply(Value a, Value b) {
    if constexpr (kComplex<A>) {
      return Value{a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    } else if constexpr (kReal<A>) {
      return a * b;
    } else {
      using W = typename WrappingOf<A, Value>::Type;
      return (Value)((W)a * (W)b);
    }
  }
};

struct Min {
  template <typename A, typename Value>
  static HC_INLINE Value Apply(Value a, Value b) {
    if constexpr (kReal<A>) {
      return ((b < a) | (b != b)) ? b : a;  // keeps a NaN in `a`: both comparisons are false
    } else {
      return (b < a) ? b : a;
    }
  }
};

struct Max {
  template <typename A, typename Value>
  static HC_INLINE Value Apply(Value a, Value b) {
    if constexpr (kReal<A>) {
      return ((b > a) | (b != b)) ? b : a;
    } else {
      return (b > a) ? b : a;
    }
  }
};

struct And {
  template <typename A, typename Value>
  static HC_INLINE Value Apply(Value a, Value b) {
    return (Value)(a & b);
  }
};
struct Or {
  template <typename A, typename Value>
  static HC_INLINE Value Apply(Value a, Value b) {
    return (Value)(a | b);
  }
};
struct Xor {
  template <typename A, typename Value>
  static HC_INLINE Value Apply(Value a, Value b) {
    return (Value)(a ^ b);
  }
};

// ---- scaling ----

// Truncates towards zero and saturates; NaN gives 0.
template <typename A>
HC_INLINE A Truncate(double value) {
  constexpr bool kSigned = static_cast<A>(-1) < static_cast<A>(0);
  constexpr int kBits = sizeof(A) * 8 - (kSigned ? 1 : 0);
  constexpr A kLargest = static_cast<A>(~uint64_t{0} >> (64 - kBits));
  constexpr A kSmallest = kSigned ? static_cast<A>(-kLargest - 1) : static_cast<A>(0);
  constexpr double kLimit = static_cast<double>(uint64_t{1} << (kBits - 1)) * 2.0;  // 2^kBits
  if (value != value) return 0;
  if (value >= kLimit) return kLargest;
  if (value <= (kSigned ? -kLimit : 0.0)) return kSmallest;
  return static_cast<A>(value);
}

template <typename T>
struct Factors {
  using A = Accumulator<T>;
  double before, after;
  int64_t divisor;

  template <typename Value>
  HC_INLINE Value Before(Value value) const {
    if constexpr (kComplex<A>) {
      using R = decltype(value.re);
      return Value{value.re * static_cast<R>(before), value.im * static_cast<R>(before)};
    } else if constexpr (kReal<A>) {
      return value * static_cast<A>(before);
    } else {
      return before == 1.0 ? value : Truncate<A>(static_cast<double>(value) * before);
    }
  }

  template <typename Value>
  HC_INLINE Value After(Value value) const {
    if constexpr (kComplex<A>) {
      using R = decltype(value.re);
      return Value{value.re * static_cast<R>(after), value.im * static_cast<R>(after)};
    } else if constexpr (kReal<A>) {
      value = value * static_cast<A>(after);
      return divisor == 1 ? value : value / static_cast<A>(divisor);
    } else {
      if (after != 1.0) value = Truncate<A>(static_cast<double>(value) * after);
      if (divisor == 1) return value;
      // The divisor is a number of ranks, so it is positive. uint64 is divided unsigned: as int64, values from 2^63 on
      // would be negative.
      if constexpr (kSame<A, uint64_t>) return value / static_cast<uint64_t>(divisor);
      return static_cast<A>(static_cast<int64_t>(value) / divisor);
    }
  }
};

template <typename A, typename Value>
HC_INLINE Value Canonical(Value value) {
  if constexpr (kComplex<A>) {
    using R = decltype(value.re);
    return Value{Canonical<R>(value.re), Canonical<R>(value.im)};
  } else if constexpr (kReal<A>) {
    const Value nan = Value{} + CanonicalNan<A>();
    return (value == value) ? value : nan;
  } else {
    return value;
  }
}

}  // namespace
}  // namespace horocache::data
