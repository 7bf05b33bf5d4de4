#include "nccl/arithmetic.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "driver/numbers.h"

namespace fake_gpu {
namespace {

constexpr size_t kSizes[kDataTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

// A type of C++ that is stored as it is.
template <typename T>
struct Plain {
  using Stored = T;
  using Value = T;
  static Value Load(Stored stored) { return stored; }
  static Stored Round(Value value) { return value; }
};

template <typename Format, typename Bits>
struct Small {
  using Stored = Bits;
  using Value = float;
  static Value Load(Stored stored) { return Format::Value(stored); }
  static Stored Round(Value value) { return static_cast<Stored>(Format::Bits(value)); }
};

// Integers wrap around; the arithmetic of signed ones is done without sign.
template <typename T>
T Add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

template <typename T>
T Multiply(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

// A NaN loses against a number, and -0 against 0, as measured.
template <typename T>
T Larger(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return a > b ? a : b;
  } else {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
    if (a == b) return std::signbit(a) ? b : a;
    return a > b ? a : b;
  }
}

template <typename T>
T Smaller(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return a < b ? a : b;
  } else {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
    if (a == b) return std::signbit(a) ? a : b;
    return a < b ? a : b;
  }
}

template <typename T>
T Combine(int operation, T a, T b) {
  switch (operation) {
    case kProd:
      return Multiply(a, b);
    case kMax:
      return Larger(a, b);
    case kMin:
      return Smaller(a, b);
    default:
      return Add(a, b);
  }
}

template <typename Type>
void ReduceAs(int operation, const std::byte* factor, const std::vector<const std::byte*>& inputs, std::byte* output,
              size_t count) {
  using Stored = typename Type::Stored;
  using Value = typename Type::Value;
  constexpr bool kInteger = std::is_integral_v<Value>;
  const auto load = [](const std::byte* from, size_t index) {
    Stored stored;
    std::memcpy(&stored, from + index * sizeof(Stored), sizeof(Stored));
    return Type::Load(stored);
  };
  Value scale{};
  const bool scaled = operation == kPreMulSum || (operation == kAvg && !kInteger);
  if (operation == kPreMulSum) {
    scale = load(factor, 0);
  } else if (scaled) {
    scale = Type::Load(Type::Round(static_cast<Value>(1) / static_cast<Value>(inputs.size())));
  }
  for (size_t i = 0; i < count; ++i) {
    Value value{};
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      Value next = load(inputs[rank], i);
      if (scaled) next = Type::Load(Type::Round(Multiply(next, scale)));
      value = rank == 0 ? next : Type::Load(Type::Round(Combine(operation, value, next)));
    }
    if constexpr (kInteger) {
      if (operation == kAvg) value = static_cast<Value>(value / static_cast<Value>(inputs.size()));
    }
    const Stored stored = Type::Round(value);
    std::memcpy(output + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

}  // namespace

size_t TypeSize(int type) { return type >= 0 && type < kDataTypes ? kSizes[type] : 0; }

void Reduce(int type, int operation, const std::byte* factor, const std::vector<const std::byte*>& inputs,
            std::byte* output, size_t count) {
  using Function = void (*)(int, const std::byte*, const std::vector<const std::byte*>&, std::byte*, size_t);
  static constexpr Function kFunctions[kDataTypes] = {&ReduceAs<Plain<int8_t>>,
                                                      &ReduceAs<Plain<uint8_t>>,
                                                      &ReduceAs<Plain<int32_t>>,
                                                      &ReduceAs<Plain<uint32_t>>,
                                                      &ReduceAs<Plain<int64_t>>,
                                                      &ReduceAs<Plain<uint64_t>>,
                                                      &ReduceAs<Small<Half, uint16_t>>,
                                                      &ReduceAs<Plain<float>>,
                                                      &ReduceAs<Plain<double>>,
                                                      &ReduceAs<Small<Bfloat, uint16_t>>,
                                                      &ReduceAs<Small<Float8E4M3, uint8_t>>,
                                                      &ReduceAs<Small<Float8E5M2, uint8_t>>};
  kFunctions[type](operation, factor, inputs, output, count);
}

}  // namespace fake_gpu
