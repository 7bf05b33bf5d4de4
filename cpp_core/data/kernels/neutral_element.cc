#include "data/kernels/neutral_element.h"

#include <complex>
#include <cstring>
#include <limits>

namespace horocache::data {
namespace {

using wire::ReduceOp;

template <typename T>
void Fill(T value, std::byte* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(out + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

template <typename T>
T Integer(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return std::numeric_limits<T>::max();
    case ReduceOp::kMax:
      return std::numeric_limits<T>::min();
    case ReduceOp::kProduct:
      return 1;
    case ReduceOp::kAnd:
      return static_cast<T>(~T{0});
    default:
      return 0;
  }
}

template <typename T>
T Real(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return std::numeric_limits<T>::infinity();
    case ReduceOp::kMax:
      return -std::numeric_limits<T>::infinity();
    case ReduceOp::kProduct:
      return T{1};
    default:
      return -T{0};
  }
}

// Bits of the identity element in a 16-bit float format; `infinity` and `one` are the bits of these values.
uint16_t Half(ReduceOp op, uint16_t infinity, uint16_t one) {
  constexpr uint16_t kSign = 0x8000;
  switch (op) {
    case ReduceOp::kMin:
      return infinity;
    case ReduceOp::kMax:
      return infinity | kSign;
    case ReduceOp::kProduct:
      return one;
    default:
      return kSign;
  }
}

template <typename T>
std::complex<T> Complex(ReduceOp op) {
  return op == ReduceOp::kProduct ? std::complex<T>(1, 0) : std::complex<T>(-T{0}, -T{0});
}

uint8_t Bool(ReduceOp op) { return op == ReduceOp::kMin || op == ReduceOp::kProduct || op == ReduceOp::kAnd ? 1 : 0; }

void FillIntegers(DType dtype, ReduceOp op, std::byte* out, int64_t count) {
  switch (dtype) {
    case DType::kUint8:
      return Fill(Integer<uint8_t>(op), out, count);
    case DType::kUint16:
      return Fill(Integer<uint16_t>(op), out, count);
    case DType::kUint32:
      return Fill(Integer<uint32_t>(op), out, count);
    case DType::kUint64:
      return Fill(Integer<uint64_t>(op), out, count);
    case DType::kInt8:
      return Fill(Integer<int8_t>(op), out, count);
    case DType::kInt16:
      return Fill(Integer<int16_t>(op), out, count);
    case DType::kInt32:
      return Fill(Integer<int32_t>(op), out, count);
    default:
      return Fill(Integer<int64_t>(op), out, count);
  }
}

}  // namespace

void FillNeutralElement(DType dtype, ReduceOp op, std::byte* out, int64_t count) {
  switch (dtype) {
    case DType::kFloat16:
      return Fill(Half(op, 0x7c00, 0x3c00), out, count);
    case DType::kBfloat16:
      return Fill(Half(op, 0x7f80, 0x3f80), out, count);
    case DType::kFloat32:
      return Fill(Real<float>(op), out, count);
    case DType::kFloat64:
      return Fill(Real<double>(op), out, count);
    case DType::kComplex64:
      return Fill(Complex<float>(op), out, count);
    case DType::kComplex128:
      return Fill(Complex<double>(op), out, count);
    case DType::kBool:
      return Fill(Bool(op), out, count);
    default:
      return FillIntegers(dtype, op, out, count);
  }
}

}  // namespace horocache::data
