#include "data/kernels/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <vector>

namespace horocache::data {
namespace {

template <typename T>
NonFinite In(DType dtype, const std::vector<T>& values) {
  return FindNonFinite(dtype, reinterpret_cast<const std::byte*>(values.data()), static_cast<int64_t>(values.size()));
}

void Expect(const NonFinite& found, int64_t count, int64_t first) {
  EXPECT_EQ(found.count, count);
  EXPECT_EQ(found.first, first);
}

TEST(FindNonFinite, CountsNansAndInfinitiesOfEveryFloatingType) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const float big = std::numeric_limits<float>::max(), tiny = std::numeric_limits<float>::denorm_min();
  Expect(In<float>(DType::kFloat32, {1, -0.0f, big, -big, tiny}), 0, -1);
  Expect(In<float>(DType::kFloat32, {1, nan, -nan, inf, 2, -inf}), 4, 1);
  const double most = std::numeric_limits<double>::max();
  Expect(In<double>(DType::kFloat64, {most, -most, 0.0}), 0, -1);
  Expect(In<double>(DType::kFloat64, {0, 0, -std::numeric_limits<double>::infinity(), std::nan("")}), 2, 2);
  // float16: the largest, infinity, a NaN, minus infinity; bfloat16 likewise.
  Expect(In<uint16_t>(DType::kFloat16, {0x7BFF, 0x7C00, 0x7E01, 0xFC00}), 3, 1);
  Expect(In<uint16_t>(DType::kBfloat16, {0x7F7F, 0x7C00, 0x7F80, 0x7FC1, 0xFF80}), 3, 2);
}

TEST(FindNonFinite, AComplexNumberCountsOnce) {
  const float nan = std::nanf("");
  Expect(In<std::complex<float>>(DType::kComplex64, {{1, 2}, {nan, nan}, {0, nan}, {nan, 0}}), 3, 1);
  Expect(In<std::complex<double>>(DType::kComplex128, {{1, 2}, {0, HUGE_VAL}}), 1, 1);
}

TEST(FindNonFinite, IntegersHaveNone) {
  Expect(In<uint32_t>(DType::kInt32, {0x7F80'0000, 0x7FFF'FFFF}), 0, -1);
  Expect(In<uint8_t>(DType::kBool, {1, 0}), 0, -1);
  Expect(FindNonFinite(DType::kFloat32, nullptr, 0), 0, -1);
}

}  // namespace
}  // namespace horocache::data
