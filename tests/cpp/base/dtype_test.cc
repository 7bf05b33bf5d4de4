#include "base/dtype.h"

#include <gtest/gtest.h>

namespace horocache {
namespace {

TEST(DType, TheTableIsConsistent) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const auto [code, bits] = DTypeToDlpack(dtype);
    EXPECT_EQ(DTypeFromDlpack(code, bits, 1), dtype) << DTypeName(dtype);
    EXPECT_EQ(DTypeFromName(DTypeName(dtype)), dtype);
    EXPECT_EQ(DTypeBytes(dtype) * 8, static_cast<size_t>(bits)) << DTypeName(dtype);
    EXPECT_LE(IsFloat(dtype) + IsComplex(dtype) + IsInteger(dtype), 1) << DTypeName(dtype);
  }
}

TEST(DType, VectorsAndUnknownTypesAreNotSupported) {
  EXPECT_FALSE(DTypeFromDlpack(2, 32, 4).has_value());
  EXPECT_FALSE(DTypeFromDlpack(2, 8, 1).has_value());
  EXPECT_FALSE(DTypeFromName("float128").has_value());
}

}  // namespace
}  // namespace horocache
