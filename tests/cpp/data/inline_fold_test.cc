#include "data/inline_fold.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/dtype.h"

namespace horocache::data {
namespace {

wire::Signature Reduce(DType dtype, wire::ReduceOp op, std::vector<int64_t> lengths) {
  wire::Signature signature;
  signature.reduce_op = op;
  signature.name = "x";
  for (const int64_t length : lengths) signature.tensors.push_back({"x", dtype, {length}});
  return signature;
}

// Returns `words` words of each rank, with bit patterns that are not NaN in any type.
std::vector<uint64_t> Contributions(int ranks, size_t words) {
  std::vector<uint64_t> all;
  for (uint64_t i = 0; i < static_cast<size_t>(ranks) * words; ++i)
    all.push_back((0x9e3779b97f4a7c15 * (i + 1)) & 0x3f7f3f7f3f7f3f7f);
  return all;
}

TEST(InlineFold, EqualsAFoldOverTheRanksForEveryTypeOperationAndLength) {
  const KernelSet* kernels = *FindKernels("auto");
  InlineFold fold(kernels);
  for (int type = 0; type < kNumDTypes; ++type) {
    for (int number = 0; number < wire::kNumReduceOps; ++number) {
      const auto dtype = static_cast<DType>(type);
      const auto op = static_cast<wire::ReduceOp>(number);
      if (!CheckFold(dtype, op, {}).ok()) continue;
      const auto width = static_cast<int64_t>(DTypeBytes(dtype));
      for (int64_t bytes = width; bytes <= 64; bytes += width) {
        for (const int ranks : {1, 2, 3, 7}) {
          const size_t words = static_cast<size_t>(bytes + 7) / 8;
          const std::vector<uint64_t> all = Contributions(ranks, words);
          std::vector<const std::byte*> inputs;
          for (int rank = 0; rank < ranks; ++rank)
            inputs.push_back(reinterpret_cast<const std::byte*>(&all[static_cast<size_t>(rank) * words]));
          std::byte expected[64], result[65] = {};
          FoldCall call{.inputs = inputs.data(), .num_inputs = ranks, .count = bytes / width, .output = expected};
          call.scaling = MakeScaling(dtype, op, 1.0, 1.0, ranks);
          Fold(kernels->Find(dtype, op), dtype, call);
          ASSERT_TRUE(fold.Run(Reduce(dtype, op, {bytes / width}), ranks, ranks, all, bytes, result).ok());
          ASSERT_EQ(std::memcmp(result, expected, static_cast<size_t>(bytes)), 0)
              << wire::ReduceOpName(op) << " of " << bytes << " bytes of " << DTypeName(dtype) << ", " << ranks;
          ASSERT_EQ(result[bytes], std::byte{0}) << "wrote beyond its end";
        }
      }
    }
  }
}

TEST(InlineFold, RefusesUndefinedReductions) {
  InlineFold fold(*FindKernels("auto"));
  std::byte result[64];
  const std::vector<uint64_t> all(2);
  for (const wire::Signature& signature :
       {Reduce(DType::kBool, wire::ReduceOp::kAverage, {1}), Reduce(DType::kFloat32, wire::ReduceOp::kAdasum, {1}),
        Reduce(DType::kFloat64, wire::ReduceOp::kXor, {1}), Reduce(DType::kComplex64, wire::ReduceOp::kMax, {1})}) {
    EXPECT_EQ(fold.Run(signature, 2, 2, all, 8, result).code(), StatusCode::kUnsupported);
  }
}

}  // namespace
}  // namespace horocache::data
