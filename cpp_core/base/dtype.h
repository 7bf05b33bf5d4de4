// The table of element types (dtypes); every property of a dtype comes from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace horocache {

// Columns: name in C++, name for users, bytes, DLPack type code (0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool),
// bits
#define HC_DTYPES(X)                       \
  X(kUint8, "uint8", 1, 1, 8)              \
  X(kInt8, "int8", 1, 0, 8)                \
  X(kInt16, "int16", 2, 0, 16)             \
  X(kInt32, "int32", 4, 0, 32)             \
  X(kInt64, "int64", 8, 0, 64)             \
  X(kFloat16, "float16", 2, 2, 16)         \
  X(kBfloat16, "bfloat16", 2, 4, 16)       \
  X(kFloat32, "float32", 4, 2, 32)         \
  X(kFloat64, "float64", 8, 2, 64)         \
  X(kComplex64, "complex64", 8, 5, 64)     \
  X(kComplex128, "complex128", 16, 5, 128) \
  X(kBool, "bool", 1, 6, 8)                \
  X(kUint16, "uint16", 2, 1, 16)           \
  X(kUint32, "uint32", 4, 1, 32)           \
  X(kUint64, "uint64", 8, 1, 64)

enum class DType : uint8_t {
#define HC_ENUM(id, name, bytes, code, bits) id,
  HC_DTYPES(HC_ENUM)
#undef HC_ENUM
};

inline constexpr int kNumDTypes = 15;

size_t DTypeBytes(DType dtype);
std::string_view DTypeName(DType dtype);
std::optional<DType> DTypeFromDlpack(int code, int bits, int lanes);
std::optional<DType> DTypeFromName(std::string_view name);
// The DLPack code and bits of a dtype.
std::pair<int, int> DTypeToDlpack(DType dtype);

bool IsFloat(DType dtype);       // f16 bf16 f32 f64
bool Is16BitFloat(DType dtype);  // f16 bf16
bool IsComplex(DType dtype);     // c64 c128
bool IsInteger(DType dtype);     // not bool

}  // namespace horocache
