// The fold kernels, compiled once per instruction set: no include guard on purpose. The including file defines
// HC_VECTOR_BYTES (0: no vectors) and, where it is not 0, chooses the instructions before it includes this.
//
// Everything is in an unnamed namespace, so that the linker never replaces a function by its copy for another
// instruction set. For the same reason the code here calls nothing from the standard library's headers.

#include "base/memory.h"
#include "data/kernels/fold_elements.h"
#include "data/kernels/fold_operations.h"

namespace horocache::data {
namespace {

// ---- the loop ----

// Folds the elements from `i` to `end` in whole steps; returns the first element that is left.
template <typename T, typename Operation, typename Lanes, int kInputs, bool kScaled>
HC_INLINE int64_t Loop(const FoldCall& call, int64_t i, int64_t end, bool stream_output, bool stream_second) {
  using A = Accumulator<T>;
  using Value = typename Lanes::Value;
  constexpr int kStep = Lanes::kCount * Lanes::kUnroll;
  const int inputs = kInputs > 0 ? kInputs : call.num_inputs;
  const Factors<T> factors{call.scaling.before, call.scaling.after, call.scaling.divisor};
  const std::byte* const* const in = call.inputs;
  std::byte* const output = call.output;
  std::byte* const second = call.second;
  for (; i + kStep <= end; i += kStep) {
    Value value[Lanes::kUnroll];
    for (int u = 0; u < Lanes::kUnroll; ++u) {
      value[u] = Lanes::Load(in[0] + (i + u * Lanes::kCount) * sizeof(T));
      if constexpr (kScaled) value[u] = factors.Before(value[u]);
    }
    for (int r = 1; r < inputs; ++r) {
      for (int u = 0; u < Lanes::kUnroll; ++u) {
        Value other = Lanes::Load(in[r] + (i + u * Lanes::kCount) * sizeof(T));
        if constexpr (kScaled) other = factors.Before(other);
        value[u] = Operation::template Apply<A, Value>(value[u], other);
      }
    }
    for (int u = 0; u < Lanes::kUnroll; ++u) {
      if constexpr (kScaled) value[u] = factors.After(value[u]);
      value[u] = Canonical<A>(value[u]);
      Lanes::Store(output + (i + u * Lanes::kCount) * sizeof(T), value[u], stream_output);
    }
    if (second == nullptr) continue;
    for (int u = 0; u < Lanes::kUnroll; ++u) {
      Lanes::Store(second + (i + u * Lanes::kCount) * sizeof(T), value[u], stream_second);
    }
  }
  return i;
}

#if HC_VECTOR_BYTES > 0
// Number of elements until `at` is a multiple of `alignment`; `count` if none of the elements is aligned.
template <typename T>
HC_INLINE int64_t ElementsBefore(const std::byte* at, uintptr_t alignment, int64_t count) {
  const uintptr_t missing = (alignment - reinterpret_cast<uintptr_t>(at) % alignment) % alignment;
  const auto elements = static_cast<int64_t>(missing / sizeof(T));
  return missing % sizeof(T) == 0 && elements < count ? elements : count;
}

HC_INLINE bool Aligned(const std::byte* at, uintptr_t alignment) {
  return reinterpret_cast<uintptr_t>(at) % alignment == 0;
}

template <typename T, typename Operation, int kInputs, bool kScaled>
HC_INLINE int64_t RunVectors(const FoldCall& call) {
  // Streaming starts at a whole cache line. A line that is streamed in two parts, with other stores in between, is
  // written to memory twice and takes three times as long.
  constexpr auto kLine = static_cast<uintptr_t>(kCacheLine);
  int64_t i = 0;
  bool stream_output = call.stream_output;
  bool stream_second = call.stream_second && call.second != nullptr;
  if (stream_output || stream_second) {
    const int64_t head = ElementsBefore<T>(stream_second ? call.second : call.output, kLine, call.count);
    i = Loop<T, Operation, Scalar<T>, kInputs, kScaled>(call, 0, head, false, false);
    stream_output = stream_output && Aligned(call.output + i * sizeof(T), kLine);
  }
  i = Loop<T, Operation, Vector<T>, kInputs, kScaled>(call, i, call.count, stream_output, stream_second);
  if (stream_output || stream_second) _mm_sfence();
  return i;
}
#endif

template <typename T, typename Operation, int kInputs, bool kScaled>
HC_INLINE void Run(const FoldCall& call) {
  int64_t i = 0;
#if HC_VECTOR_BYTES > 0
  constexpr bool kVectors = !kComplex<T> && (kReal<Accumulator<T>> || !kScaled);
  if constexpr (kVectors) i = RunVectors<T, Operation, kInputs, kScaled>(call);
#endif
  Loop<T, Operation, Scalar<T>, kInputs, kScaled>(call, i, call.count, false, false);
}

template <typename T, typename Operation>
void FoldElements(const FoldCall& call) {
  if (!call.scaling.none()) return Run<T, Operation, 0, true>(call);
  if (call.num_inputs == 2) return Run<T, Operation, 2, false>(call);
  Run<T, Operation, 0, false>(call);
}

// A sum of complex numbers is a sum of twice as many real ones.
template <typename R>
void FoldComplexSum(const FoldCall& call) {
  FoldCall real = call;
  real.count *= 2;
  FoldElements<R, Sum>(real);
}

// ---- the table ----

template <typename T>
constexpr void AddArithmetic(FoldFunction (&row)[wire::kNumReduceOps]) {
  row[static_cast<int>(wire::ReduceOp::kAverage)] = FoldElements<T, Sum>;
  row[static_cast<int>(wire::ReduceOp::kSum)] = FoldElements<T, Sum>;
  row[static_cast<int>(wire::ReduceOp::kProduct)] = FoldElements<T, Product>;
  row[static_cast<int>(wire::ReduceOp::kMin)] = FoldElements<T, Min>;
  row[static_cast<int>(wire::ReduceOp::kMax)] = FoldElements<T, Max>;
}

template <typename T>
constexpr void AddBitwise(FoldFunction (&row)[wire::kNumReduceOps]) {
  row[static_cast<int>(wire::ReduceOp::kAnd)] = FoldElements<T, And>;
  row[static_cast<int>(wire::ReduceOp::kOr)] = FoldElements<T, Or>;
  row[static_cast<int>(wire::ReduceOp::kXor)] = FoldElements<T, Xor>;
}

template <typename T>
constexpr void AddInteger(FoldFunction (&row)[wire::kNumReduceOps]) {
  AddArithmetic<T>(row);
  AddBitwise<T>(row);
}

template <typename R>
constexpr void AddComplex(FoldFunction (&row)[wire::kNumReduceOps]) {
  row[static_cast<int>(wire::ReduceOp::kAverage)] = FoldComplexSum<R>;
  row[static_cast<int>(wire::ReduceOp::kSum)] = FoldComplexSum<R>;
  row[static_cast<int>(wire::ReduceOp::kProduct)] = kSame<R, float> ? FoldComplex64Product : FoldComplex128Product;
}

constexpr void AddBool(FoldFunction (&row)[wire::kNumReduceOps]) {
  AddBitwise<Bool>(row);
  row[static_cast<int>(wire::ReduceOp::kSum)] = FoldElements<Bool, Or>;
  row[static_cast<int>(wire::ReduceOp::kMax)] = FoldElements<Bool, Or>;
  row[static_cast<int>(wire::ReduceOp::kProduct)] = FoldElements<Bool, And>;
  row[static_cast<int>(wire::ReduceOp::kMin)] = FoldElements<Bool, And>;
}

constexpr KernelTable MakeTable() {
  KernelTable table;
  AddInteger<uint8_t>(table.functions[static_cast<int>(DType::kUint8)]);
  AddInteger<int8_t>(table.functions[static_cast<int>(DType::kInt8)]);
  AddInteger<int16_t>(table.functions[static_cast<int>(DType::kInt16)]);
  AddInteger<int32_t>(table.functions[static_cast<int>(DType::kInt32)]);
  AddInteger<int64_t>(table.functions[static_cast<int>(DType::kInt64)]);
  AddArithmetic<Half>(table.functions[static_cast<int>(DType::kFloat16)]);
  AddArithmetic<Brain>(table.functions[static_cast<int>(DType::kBfloat16)]);
  AddArithmetic<float>(table.functions[static_cast<int>(DType::kFloat32)]);
  AddArithmetic<double>(table.functions[static_cast<int>(DType::kFloat64)]);
  AddComplex<float>(table.functions[static_cast<int>(DType::kComplex64)]);
  AddComplex<double>(table.functions[static_cast<int>(DType::kComplex128)]);
  AddBool(table.functions[static_cast<int>(DType::kBool)]);
  AddInteger<uint16_t>(table.functions[static_cast<int>(DType::kUint16)]);
  AddInteger<uint32_t>(table.functions[static_cast<int>(DType::kUint32)]);
  AddInteger<uint64_t>(table.functions[static_cast<int>(DType::kUint64)]);
  return table;
}

#undef HC_INLINE

}  // namespace
}  // namespace horocache::data
