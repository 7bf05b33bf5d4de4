// The kernels: every set gives the same bytes as the scalar kernels, and these give the results of plain arithmetic.
#include "data/kernels/fold.h"

#include <gtest/gtest.h>

#include "data/numbers.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace horocache::data {
namespace {

using testing::AllDTypes;
using testing::AllReduceOps;
using testing::Append;
using testing::Bytes;
using testing::RandomBits;
using testing::Read;
using wire::ReduceOp;

const KernelSet& Kernels(const std::string& name) {
  auto kernels = FindKernels(name);
  EXPECT_TRUE(kernels.ok()) << kernels.status().message();
  return **kernels;
}

Bytes FoldAll(const KernelSet& kernels, DType dtype, ReduceOp op, const std::vector<Bytes>& inputs,
              Scaling scaling = {}, Bytes* second = nullptr, bool stream = false) {
  Bytes output(inputs[0].size() + 1, std::byte{0x77});
  std::vector<const std::byte*> pointers;
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  FoldCall call;
  call.inputs = pointers.data();
  call.num_inputs = static_cast<int>(inputs.size());
  call.count = static_cast<int64_t>(inputs[0].size() / DTypeBytes(dtype));
  call.output = output.data();
  if (second != nullptr) second->assign(inputs[0].size(), std::byte{});
  call.second = second == nullptr ? nullptr : second->data();
  call.scaling = scaling;
  call.stream_output = call.stream_second = stream;
  Fold(kernels.Find(dtype, op), dtype, call);
  EXPECT_EQ(output.back(), std::byte{0x77}) << "wrote behind the end";
  output.pop_back();
  return output;
}

template <typename T>
Bytes Of(std::initializer_list<T> values) {
  Bytes bytes;
  for (const T value : values) Append<T>(&bytes, value);
  return bytes;
}

std::vector<std::string> VectorSets() {
  std::vector<std::string> names;
  for (const char* name : {"avx2", "avx512"}) {
    if (FindKernels(name).ok()) names.emplace_back(name);
  }
  return names;
}

class EverySetTest : public ::testing::TestWithParam<DType> {};

TEST_P(EverySetTest, GivesTheBytesOfTheScalarKernelsForAnyBits) {
  const DType dtype = GetParam();
  const std::vector<Scaling> scalings = {{}, {0.3, 1.0, 1}, {1.0, 0.125, 1}, {1.0, 1.0, 3}, {-2.0, 0.7, 5}};
  for (const ReduceOp op : AllReduceOps()) {
    for (const Scaling& scaling : scalings) {
      if (!CheckFold(dtype, op, scaling).ok()) continue;
      if (dtype == DType::kBool && !scaling.none()) continue;
      for (const int n : {1, 2, 3, 5}) {
        for (const size_t count : {1u, 7u, 16u, 63u, 64u, 65u, 255u, 256u, 1000u}) {
          std::vector<Bytes> inputs;
          for (int r = 0; r < n; ++r) {
            inputs.push_back(RandomBits(count * DTypeBytes(dtype), count * 100 + static_cast<uint64_t>(r)));
          }
          Bytes second;
          const Bytes expected = FoldAll(Kernels("scalar"), dtype, op, inputs, scaling);
          for (const std::string& name : VectorSets()) {
            const bool stream = count > 500;
            ASSERT_EQ(FoldAll(Kernels(name), dtype, op, inputs, scaling, &second, stream), expected)
                << name << " " << DTypeName(dtype) << " " << wire::ReduceOpName(op) << " n=" << n << " count=" << count
                << " before=" << scaling.before << " after=" << scaling.after << " divisor=" << scaling.divisor;
            ASSERT_EQ(second, expected) << "the second output";
          }
        }
      }
    }
  }
}

TEST_P(EverySetTest, FoldsInPlaceAndFromUnalignedMemory) {
  const DType dtype = GetParam();
  const ReduceOp op = dtype == DType::kBool ? ReduceOp::kOr : ReduceOp::kSum;
  const size_t bytes = 333 * DTypeBytes(dtype);
  const std::vector<Bytes> inputs = {RandomBits(bytes, 1), RandomBits(bytes, 2)};
  const Bytes expected = FoldAll(Kernels("scalar"), dtype, op, inputs);
  for (const size_t shift : {0u, 1u, 3u, 32u}) {
    Bytes mine(bytes + 64);
    std::memcpy(mine.data() + shift, inputs[1].data(), bytes);
    const std::byte* pointers[] = {inputs[0].data(), mine.data() + shift};
    FoldCall call;
    call.inputs = pointers;
    call.num_inputs = 2;
    call.count = 333;
    call.output = mine.data() + shift;
    Fold(Kernels("auto").Find(dtype, op), dtype, call);
    EXPECT_EQ(std::memcmp(mine.data() + shift, expected.data(), bytes), 0) << DTypeName(dtype) << " shift " << shift;
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, EverySetTest, ::testing::ValuesIn(AllDTypes()),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(HalfConversion, RoundsEveryFloatNearAHalfToNearestEven) {
  // Values at and around halves and the middles between two halves: all halves at both ends of the range, every 11th in
  // between.
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x7c00; bits += bits < 16 || bits > 0x7bf0 ? 1 : 11) {
    const auto here = static_cast<float>(testing::HalfValue(static_cast<uint16_t>(bits)));
    const auto next =
        bits == 0x7bff ? 65536.0f : static_cast<float>(testing::HalfValue(static_cast<uint16_t>(bits + 1)));
    const float middle = (here + next) / 2;
    for (const float value : {here, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  values.push_back(std::numeric_limits<float>::infinity());
  values.push_back(1e30f);
  values.push_back(1e-30f);
  // The fold of one 1.0, scaled by `value`, is `value` rounded to a half.
  Bytes one, expected;
  std::vector<std::string> sets = VectorSets();
  sets.emplace_back("scalar");
  for (const std::string& name : sets) {
    for (const float value : values) {
      Bytes input = Of<uint16_t>({testing::ToHalf(1.0)});
      const Bytes out = FoldAll(Kernels(name), DType::kFloat16, ReduceOp::kSum, {input}, {1.0, value, 1});
      ASSERT_EQ(Read<uint16_t>(out, 0), testing::ToHalf(value)) << name << " " << value;
    }
  }
}

TEST(HalfConversion, WidensEveryHalfExactly) {
  Bytes all, expected;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    Append<uint16_t>(&all, static_cast<uint16_t>(bits));
    const bool nan = std::isnan(testing::HalfValue(static_cast<uint16_t>(bits)));
    Append<uint16_t>(&expected, nan ? uint16_t{0x7e00} : static_cast<uint16_t>(bits));
  }
  for (const char* name : {"scalar", "auto"}) {
    EXPECT_EQ(FoldAll(Kernels(name), DType::kFloat16, ReduceOp::kMax, {all, all}), expected) << name;
  }
}

TEST(BrainConversion, RoundsToNearestEven) {
  std::mt19937_64 random(5);
  for (const char* name : {"scalar", "auto"}) {
    for (int i = 0; i < 20000; ++i) {
      const float value =
          std::ldexp(static_cast<float>(random() % 100000) / 7.0f, static_cast<int>(random() % 200) - 120);
      const Bytes out = FoldAll(Kernels(name), DType::kBfloat16, ReduceOp::kSum,
                                {Of<uint16_t>({testing::ToBrain(1.0)})}, {1.0, value, 1});
      ASSERT_EQ(Read<uint16_t>(out, 0), testing::ToBrain(value)) << name << " " << value;
    }
  }
}

TEST(Fold, AddsInRankOrder) {
  // (1e8 + 1) + -1e8 is 0 in float32; 1e8 + (1 + -1e8) is 0 too, but (1e8 + -1e8) + 1 is 1.
  const std::vector<Bytes> inputs = {Of<float>({1e8f}), Of<float>({1.0f}), Of<float>({-1e8f})};
  const std::vector<Bytes> swapped = {inputs[0], inputs[2], inputs[1]};
  EXPECT_EQ(Read<float>(FoldAll(Kernels("auto"), DType::kFloat32, ReduceOp::kSum, inputs), 0), 0.0f);
  EXPECT_EQ(Read<float>(FoldAll(Kernels("auto"), DType::kFloat32, ReduceOp::kSum, swapped), 0), 1.0f);
}

TEST(Fold, RoundsHalvesOnceAtTheEnd) {
  // 2048 + 1 + 1 is 2050 if the sum stays in float32, but 2048 if every step rounds.
  const std::vector<Bytes> inputs = {Of<uint16_t>({testing::ToHalf(2048)}), Of<uint16_t>({testing::ToHalf(1)}),
                                     Of<uint16_t>({testing::ToHalf(1)})};
  const Bytes sum = FoldAll(Kernels("auto"), DType::kFloat16, ReduceOp::kSum, inputs);
  EXPECT_EQ(testing::HalfValue(Read<uint16_t>(sum, 0)), 2050.0);
}

TEST(Fold, WrapsIntegers) {
  const std::vector<Bytes> inputs = {Of<int8_t>({127, -128, 100}), Of<int8_t>({1, -1, 3})};
  EXPECT_EQ(FoldAll(Kernels("auto"), DType::kInt8, ReduceOp::kSum, inputs), Of<int8_t>({-128, 127, 103}));
  EXPECT_EQ(FoldAll(Kernels("auto"), DType::kInt8, ReduceOp::kProduct, inputs), Of<int8_t>({127, -128, 44}));
  const std::vector<Bytes> wide = {Of<int64_t>({std::numeric_limits<int64_t>::max()}), Of<int64_t>({1})};
  EXPECT_EQ(Read<int64_t>(FoldAll(Kernels("auto"), DType::kInt64, ReduceOp::kSum, wide), 0),
            std::numeric_limits<int64_t>::min());
}

TEST(Fold, AveragesIntegersAndTruncatesTowardsZero) {
  const Scaling third = MakeScaling(DType::kInt32, ReduceOp::kAverage, 1.0, 1.0, 3);
  const std::vector<Bytes> inputs = {Of<int32_t>({-1, 7, -6}), Of<int32_t>({-1, 0, 0}), Of<int32_t>({0, 1, 0})};
  EXPECT_EQ(FoldAll(Kernels("auto"), DType::kInt32, ReduceOp::kAverage, inputs, third), Of<int32_t>({0, 2, -2}));
  constexpr uint64_t kLarge = ~uint64_t{0} - 2;  // too large for int64
  const Scaling wide = MakeScaling(DType::kUint64, ReduceOp::kAverage, 1.0, 1.0, 3);
  const std::vector<Bytes> large = {Of<uint64_t>({kLarge}), Of<uint64_t>({0}), Of<uint64_t>({0})};
  EXPECT_EQ(FoldAll(Kernels("auto"), DType::kUint64, ReduceOp::kAverage, large, wide), Of<uint64_t>({kLarge / 3}));
}

TEST(Fold, ScalesIntegersInDoubleAndTruncatesAndSaturates) {
  const std::vector<Bytes> inputs = {Of<int8_t>({10, -10, 100})};
  EXPECT_EQ(FoldAll(Kernels("auto"), DType::kInt8, ReduceOp::kSum, inputs, {1.0, 0.25, 1}), Of<int8_t>({2, -2, 25}));
  EXPECT_EQ(FoldAll(Kernels("auto"), DType::kInt8, ReduceOp::kSum, inputs, {3.0, 1.0, 1}), Of<int8_t>({30, -30, 127}));
  const std::vector<Bytes> unsigned_input = {Of<uint8_t>({10, 200})};
  EXPECT_EQ(FoldAll(Kernels("auto"), DType::kUint8, ReduceOp::kSum, unsigned_input, {-1.0, 1.0, 1}),
            Of<uint8_t>({0, 0}));
  EXPECT_EQ(FoldAll(Kernels("auto"), DType::kUint64, ReduceOp::kSum, {Of<uint64_t>({3})}, {1e300, 1.0, 1}),
            Of<uint64_t>({std::numeric_limits<uint64_t>::max()}));
  const std::vector<Bytes> wide = {Of<int64_t>({1, -1})};
  EXPECT_EQ(FoldAll(Kernels("auto"), DType::kInt64, ReduceOp::kSum, wide, {1e300, 1.0, 1}),
            Of<int64_t>({std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}));
}

TEST(Fold, AveragesFloatsWithOneCorrectRounding) {
  const float x = 0.1f;
  const std::vector<Bytes> inputs = {Of<float>({x}), Of<float>({x}), Of<float>({x})};
  const Scaling third = MakeScaling(DType::kFloat32, ReduceOp::kAverage, 1.0, 1.0, 3);
  EXPECT_EQ(Read<float>(FoldAll(Kernels("auto"), DType::kFloat32, ReduceOp::kAverage, inputs, third), 0),
            (x + x + x) / 3);
  EXPECT_EQ(MakeScaling(DType::kFloat32, ReduceOp::kAverage, 1.0, 1.0, 4).after, 0.25);
  EXPECT_EQ(MakeScaling(DType::kFloat32, ReduceOp::kAverage, 1.0, 3.0, 3).after, 1.0);
}

TEST(Fold, MinAndMaxAreNanIfAnyInputIs) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Bytes> inputs = {Of<float>({nan, 1.0f, 2.0f, -0.0f}), Of<float>({1.0f, -nan, 3.0f, 0.0f})};
  for (const char* name : {"scalar", "auto"}) {
    const Bytes least = FoldAll(Kernels(name), DType::kFloat32, ReduceOp::kMin, inputs);
    EXPECT_EQ(Read<uint32_t>(least, 0), 0x7fc00000u);
    EXPECT_EQ(Read<uint32_t>(least, 1), 0x7fc00000u) << "without the sign";
    EXPECT_EQ(Read<float>(least, 2), 2.0f);
    EXPECT_EQ(Read<uint32_t>(least, 3), 0x80000000u) << "the first of two equal values";
    EXPECT_EQ(Read<float>(FoldAll(Kernels(name), DType::kFloat32, ReduceOp::kMax, inputs), 2), 3.0f);
  }
}

TEST(Fold, TreatsAnyByteButZeroAsTrue) {
  const std::vector<Bytes> inputs = {Of<uint8_t>({0, 1, 2, 4, 0}), Of<uint8_t>({0, 0, 1, 2, 3})};
  const auto fold = [&](ReduceOp op) { return FoldAll(Kernels("auto"), DType::kBool, op, inputs); };
  EXPECT_EQ(fold(ReduceOp::kSum), Of<uint8_t>({0, 1, 1, 1, 1}));
  EXPECT_EQ(fold(ReduceOp::kMax), Of<uint8_t>({0, 1, 1, 1, 1}));
  EXPECT_EQ(fold(ReduceOp::kProduct), Of<uint8_t>({0, 0, 1, 1, 0}));
  EXPECT_EQ(fold(ReduceOp::kMin), Of<uint8_t>({0, 0, 1, 1, 0}));
  EXPECT_EQ(fold(ReduceOp::kXor), Of<uint8_t>({0, 1, 0, 0, 1}));
}

TEST(Fold, MultipliesComplexNumbers) {
  const std::vector<Bytes> inputs = {Of<float>({1, 2}), Of<float>({3, -4}), Of<float>({0, 1})};
  EXPECT_EQ(FoldAll(Kernels("auto"), DType::kComplex64, ReduceOp::kProduct, inputs), Of<float>({-2, 11}));
}

TEST(Fold, CopiesOneInputBitForBit) {
  const Bytes input = RandomBits(4000, 9);
  Bytes second;
  EXPECT_EQ(FoldAll(Kernels("auto"), DType::kFloat32, ReduceOp::kSum, {input}, {}, &second), input);
  EXPECT_EQ(second, input);
}

TEST(CheckFold, RefusesUndefinedReductions) {
  const auto message = [](DType dtype, ReduceOp op, double factor = 1.0) {
    const Status status = CheckFold(dtype, op, {factor, 1.0, 1});
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    return status.message();
  };
  EXPECT_NE(message(DType::kComplex64, ReduceOp::kMin).find("complex64"), std::string::npos);
  EXPECT_NE(message(DType::kFloat32, ReduceOp::kXor).find("integers and bool"), std::string::npos);
  EXPECT_NE(message(DType::kBool, ReduceOp::kAverage).find("bool"), std::string::npos);
  EXPECT_NE(message(DType::kBool, ReduceOp::kSum, 2.0).find("cast"), std::string::npos);
  EXPECT_NE(message(DType::kFloat32, ReduceOp::kAdasum).find("average or sum"), std::string::npos);
}

TEST(CheckFold, HasAKernelForAllOtherReductions) {
  for (const DType dtype : AllDTypes()) {
    for (const ReduceOp op : AllReduceOps()) {
      const bool defined = CheckFold(dtype, op, {}).ok();
      for (const char* name : {"scalar", "auto"}) {
        EXPECT_EQ(Kernels(name).Find(dtype, op) != nullptr, defined) << DTypeName(dtype) << wire::ReduceOpName(op);
      }
    }
  }
}

TEST(FindKernels, NamesTheChoicesForAnUnknownName) {
  const auto kernels = FindKernels("mmx");
  ASSERT_FALSE(kernels.ok());
  EXPECT_EQ(kernels.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(kernels.status().message().find("avx512"), std::string::npos);
  EXPECT_EQ(Kernels("auto").name(), BestKernels());
}

#if defined(__x86_64__)
TEST(FloatMode, KeepsDenormalsAlthoughTheThreadFlushesThem) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zeros
  Bytes sum;
  {
    const FloatMode mode;
    sum = FoldAll(Kernels("auto"), DType::kFloat32, ReduceOp::kSum, {Of<uint32_t>({1}), Of<uint32_t>({2})});
  }
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(Read<uint32_t>(sum, 0), 3u);
  EXPECT_EQ(after & 0xffc0u, (before | 0x8040) & 0xffc0u) << "the user's mode is back";
}
#endif

}  // namespace
}  // namespace horocache::data
