#include "data/kernels/neutral_element.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "data/kernels/fold.h"

namespace horocache::data {
namespace {

using wire::ReduceOp;

TEST(Identity, DoesNotChangeTheOtherOperand) {
  // The values include zeros of both signs, but no NaN, which a fold makes canonical.
  const KernelSet* kernels = *FindKernels("scalar");
  for (int t = 0; t < kNumDTypes; ++t) {
    const auto dtype = static_cast<DType>(t);
    const size_t width = DTypeBytes(dtype);
    for (int o = 0; o < wire::kNumReduceOps; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      if (op == ReduceOp::kAverage || !CheckFold(dtype, op, {}).ok()) continue;
      constexpr int64_t kCount = 6;
      std::array<std::byte, 16 * kCount> value{}, identity{}, result{};
      // Zero, the pattern of integer 1, the sign bit alone, and three others.
      for (int64_t i = 0; i < kCount; ++i) {
        std::byte* at = value.data() + i * static_cast<int64_t>(width);
        if (dtype == DType::kBool) {
          at[0] = std::byte(i % 2);
          continue;
        }
        if (i == 1) at[0] = std::byte{1};
        if (i == 2) at[width - 1] = std::byte{0x80};
        if (i > 2) at[width - 1] = std::byte(0x30 + i);
        // A complex product by one may change the sign of a zero, so its values have no negative zeros.
        if (IsComplex(dtype) && op == ReduceOp::kProduct) std::memset(at + width / 2, 0, width / 2);
        if (IsComplex(dtype) && op == ReduceOp::kProduct && i == 2) at[width / 2 - 1] = std::byte{0x40};
      }
      FillNeutralElement(dtype, op, identity.data(), kCount);
      for (const bool first : {true, false}) {
        const std::byte* inputs[] = {first ? identity.data() : value.data(), first ? value.data() : identity.data()};
        FoldCall call;
        call.inputs = inputs;
        call.num_inputs = 2;
        call.count = kCount;
        call.output = result.data();
        Fold(kernels->Find(dtype, op), dtype, call);
        EXPECT_EQ(std::memcmp(result.data(), value.data(), width * kCount), 0)
            << DTypeName(dtype) << " " << ReduceOpName(op) << (first ? ", identity first" : ", identity last");
      }
    }
  }
}

}  // namespace
}  // namespace horocache::data
