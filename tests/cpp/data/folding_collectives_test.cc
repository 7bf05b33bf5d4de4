// allreduce, reduce and reducescatter of every backend, byte for byte against a fold in one thread.
#include <gtest/gtest.h>

#include <tuple>

#include "data/backends/shm/algorithms.h"
#include "data/kernels/fold.h"
#include "data/numbers.h"
#include "data/ranks.h"

namespace horocache::data {
namespace {

using testing::Bytes;
using testing::RankData;
using testing::Ranks;
using testing::RunInTurn;
using wire::Op;
using wire::ReduceOp;

// The fold of the inputs of all ranks but the joined ones, by the scalar kernels.
Bytes Expected(const std::vector<Bytes>& inputs, const Collective& c, int ranks) {
  std::vector<const std::byte*> pointers;
  for (int r = 0; r < ranks; ++r) {
    const bool joined = std::find(c.joined.begin(), c.joined.end(), r) != c.joined.end();
    if (!joined) pointers.push_back(inputs[static_cast<size_t>(r)].data());
  }
  Bytes result(inputs[0].size());
  FoldCall call;
  call.inputs = pointers.data();
  call.num_inputs = static_cast<int>(pointers.size());
  call.count = static_cast<int64_t>(result.size() / DTypeBytes(c.dtype));
  call.output = result.data();
  call.scaling = MakeScaling(c.dtype, c.reduce_op, c.prescale, c.postscale, ranks);
  const KernelSet* scalar = *FindKernels("scalar");
  Fold(scalar->Find(c.dtype, c.reduce_op), c.dtype, call);
  return result;
}

Bytes Concatenated(const std::vector<Bytes>& parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

BackendOptions TilesForBothAlgorithms() {
  BackendOptions options;
  options.tile_bytes = 512;
  options.staging_tile_bytes = 2048;
  options.oneshot_max_bytes = 1024;
  return options;
}

struct Case {
  Collective collective;
  std::vector<int64_t> counts;  // elements of each segment
  bool in_place = false;
};

// Runs an allreduce or a reduce on all ranks and compares every byte of every rank.
void CheckFoldOfSegments(Ranks* ranks, const std::string& backend, const Case& test, uint64_t seed) {
  const int n = ranks->size();
  std::vector<RankData> data(static_cast<size_t>(n));
  std::vector<Bytes> whole;
  for (int r = 0; r < n; ++r) {
    RankData& mine = data[static_cast<size_t>(r)];
    mine.collective = test.collective;
    if (backend != "shm" && !(backend == "staged" && n > 1)) mine.collective.algorithm = 0;
    mine.collective.device_class = testing::ClassOf(backend);
    for (size_t i = 0; i < test.counts.size(); ++i) {
      const size_t bytes = static_cast<size_t>(test.counts[i]) * DTypeBytes(test.collective.dtype);
      mine.inputs.push_back(testing::RandomBits(bytes, seed * 1000 + static_cast<uint64_t>(r) * 50 + i));
      if (!test.in_place) mine.outputs.emplace_back(bytes, std::byte{0x11});
    }
    whole.push_back(Concatenated(mine.inputs));
    testing::Bind(&mine);
    const auto& joined = test.collective.joined;
    if (std::find(joined.begin(), joined.end(), r) != joined.end()) {
      for (Segment& segment : mine.collective.segments) segment.input = segment.output = nullptr;
    }
    if (test.collective.op == Op::kReduce && test.collective.root != r) {
      for (Segment& segment : mine.collective.segments) segment.output = nullptr;
    }
  }
  const Bytes expected = Expected(whole, test.collective, n);
  const std::vector<Bytes> before = whole;
  for (const Status& status : RunInTurn(ranks, backend, &data)) ASSERT_TRUE(status.ok()) << status.message();
  for (int r = 0; r < n; ++r) {
    const RankData& mine = data[static_cast<size_t>(r)];
    const auto& joined = test.collective.joined;
    const bool has_result = std::find(joined.begin(), joined.end(), r) == joined.end() &&
                            (test.collective.op == Op::kAllreduce || test.collective.root == r);
    const Bytes got = Concatenated(test.in_place ? mine.inputs : mine.outputs);
    const std::string where = backend + " rank " + std::to_string(r) + " of " + std::to_string(n) + ", " +
                              std::string(DTypeName(test.collective.dtype)) + " " +
                              std::string(wire::ReduceOpName(test.collective.reduce_op)) + " seed " +
                              std::to_string(seed);
    if (has_result) {
      ASSERT_TRUE(got == expected) << where;
    } else {
      ASSERT_TRUE(got == (test.in_place ? before[static_cast<size_t>(r)] : Bytes(got.size(), std::byte{0x11})))
          << where << " was written";
    }
    if (!test.in_place) {
      ASSERT_TRUE(Concatenated(mine.inputs) == before[static_cast<size_t>(r)]) << where << ": input was written";
    }
  }
}

class FoldOnRanksTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  const std::string& backend() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
};

// Shapes as the elements of each segment: tiny, several segments, odd sizes, empty, around the size of a tile, and many
// small segments that fill one tile or many.
std::vector<std::vector<int64_t>> ShapeList() {
  std::vector<std::vector<int64_t>> shapes = {
      {1}, {0}, {}, {3, 0, 5}, {1, 1, 1, 1, 1, 1, 1}, {64}, {127}, {1000}, {17, 333, 2, 900, 0, 64}, {4099}};
  for (const size_t many : {100, 3000}) {
    std::vector<int64_t>& shape = shapes.emplace_back();
    for (size_t i = 0; i < many; ++i) shape.push_back(static_cast<int64_t>(i * i % 7));
  }
  return shapes;
}

TEST_P(FoldOnRanksTest, AllreducesEveryTypeAndOperation) {
  Ranks all(ranks(), TilesForBothAlgorithms());
  uint64_t seed = 1;
  for (const DType dtype : testing::AllDTypes()) {
    for (const ReduceOp op : testing::AllReduceOps()) {
      if (!CheckFold(dtype, op, {}).ok()) continue;
      for (const auto& counts : {std::vector<int64_t>{5}, std::vector<int64_t>{300, 1, 700}}) {
        Case test;
        test.collective.dtype = dtype;
        test.collective.reduce_op = op;
        test.counts = counts;
        test.in_place = seed % 2 == 0;
        CheckFoldOfSegments(&all, backend(), test, ++seed);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(FoldOnRanksTest, GivesTheSameBytesByEveryAlgorithmForEveryShape) {
  Ranks all(ranks(), TilesForBothAlgorithms());
  uint64_t seed = 1;
  for (const uint8_t algorithm : {kAuto, kOneshot, kTwoshot, kDirect}) {
    for (const auto& counts : ShapeList()) {
      for (const bool in_place : {false, true}) {
        for (const Op op : {Op::kAllreduce, Op::kReduce}) {
          Case test;
          test.collective.op = op;
          test.collective.algorithm = algorithm;
          test.collective.reduce_op = ReduceOp::kAverage;
          test.collective.prescale = seed % 3 == 0 ? 0.5 : 1.0;
          test.collective.root = op == Op::kReduce ? ranks() - 1 : -1;
          test.counts = counts;
          test.in_place = in_place;
          CheckFoldOfSegments(&all, backend(), test, ++seed);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(FoldOnRanksTest, LeavesJoinedRanksOutOfTheFoldButCountsThemInTheAverage) {
  if (ranks() < 2) GTEST_SKIP() << "the test needs two ranks";
  Ranks all(ranks(), TilesForBothAlgorithms());
  uint64_t seed = 1;
  for (const uint8_t algorithm : {kOneshot, kTwoshot}) {
    for (int joined = 0; joined < ranks(); ++joined) {
      Case test;
      test.collective.algorithm = algorithm;
      test.collective.reduce_op = ReduceOp::kAverage;
      test.collective.joined = {joined};
      test.counts = {3, 700, 0, 50};
      CheckFoldOfSegments(&all, backend(), test, ++seed);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(FoldOnRanksTest, ReducescattersEvenAndUnevenRows) {
  Ranks all(ranks(), TilesForBothAlgorithms());
  const int n = ranks();
  uint64_t seed = 1;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kInt8}) {
    for (const int64_t row : {1, 3, 50}) {
      for (const int64_t rows : {0, 1, 7, 100}) {
        for (const bool uneven : {false, true}) {
          std::vector<int64_t> splits(static_cast<size_t>(n), rows / n);
          for (int64_t r = 0; r < rows % n; ++r) ++splits[static_cast<size_t>(r)];
          if (uneven) {
            splits.assign(static_cast<size_t>(n), 0);
            splits[seed % static_cast<uint64_t>(n)] = rows;
          }
          std::vector<RankData> data(static_cast<size_t>(n));
          std::vector<Bytes> whole;
          for (int r = 0; r < n; ++r) {
            RankData& mine = data[static_cast<size_t>(r)];
            mine.collective.op = Op::kReducescatter;
            mine.collective.dtype = dtype;
            mine.collective.device_class = testing::ClassOf(backend());
            mine.collective.row_elements = row;
            if (uneven) mine.collective.splits = splits;
            mine.inputs.push_back(testing::RandomBits(static_cast<size_t>(rows * row) * DTypeBytes(dtype),
                                                      seed * 100 + static_cast<uint64_t>(r)));
            whole.push_back(mine.inputs[0]);
            testing::BindVariable(&mine);
          }
          const Bytes expected = Expected(whole, data[0].collective, n);
          for (const Status& status : RunInTurn(&all, backend(), &data)) ASSERT_TRUE(status.ok()) << status.message();
          Bytes together;
          for (int r = 0; r < n; ++r) {
            const RankData& mine = data[static_cast<size_t>(r)];
            ASSERT_EQ(mine.variable.rows, splits);
            ASSERT_EQ(mine.allocations, 1);
            ASSERT_EQ(static_cast<int64_t>(mine.result.size()),
                      splits[static_cast<size_t>(r)] * row * static_cast<int64_t>(DTypeBytes(dtype)));
            together.insert(together.end(), mine.result.begin(), mine.result.end());
          }
          ASSERT_TRUE(together == expected)
              << DTypeName(dtype) << " rows " << rows << " of " << row << " seed " << seed;
          ++seed;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, FoldOnRanksTest,
                         ::testing::Values(std::tuple("shm", 1), std::tuple("shm", 2), std::tuple("shm", 3),
                                           std::tuple("shm", 4), std::tuple("shm", 5), std::tuple("loopback", 1),
                                           std::tuple("fakedevice", 1), std::tuple("fakedevice", 3),
                                           std::tuple("staged", 1), std::tuple("staged", 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param));
                         });

TEST(ShmAllreduce, AgreesForEveryTileSizeAndSegmentation) {
  std::mt19937_64 random(7);
  for (int turn = 0; turn < 40; ++turn) {
    BackendOptions options;
    options.tile_bytes = 64 << (random() % 6);
    options.oneshot_max_bytes = random() % 2 == 0 ? 0 : 4096;
    options.kernels = random() % 2 == 0 ? "scalar" : "auto";
    Ranks all(2 + static_cast<int>(random() % 3), options);
    for (int i = 0; i < 5; ++i) {
      Case test;
      test.collective.dtype = random() % 2 == 0 ? DType::kFloat32 : DType::kBfloat16;
      const auto segments = random() % 6;
      for (uint64_t s = 0; s < segments; ++s) test.counts.push_back(static_cast<int64_t>(random() % 600));
      test.in_place = random() % 2 == 0;
      CheckFoldOfSegments(&all, "shm", test, random() % 100000);
      ASSERT_FALSE(HasFatalFailure()) << "turn " << turn;
    }
  }
}

}  // namespace
}  // namespace horocache::data
