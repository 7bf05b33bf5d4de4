// allgather, broadcast, alltoall, gather, scatter and barrier of every backend.
#include <gtest/gtest.h>

#include <tuple>

#include "data/numbers.h"
#include "data/ranks.h"

namespace horocache::data {
namespace {

using testing::Bytes;
using testing::RankData;
using testing::Ranks;
using testing::RunInTurn;
using wire::Op;

class MoveOnRanksTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  MoveOnRanksTest() : all_(std::get<1>(GetParam()), testing::SmallTiles()) {}

  const std::string& backend() const { return std::get<0>(GetParam()); }
  int n() const { return std::get<1>(GetParam()); }
  size_t size() const { return static_cast<size_t>(n()); }

  std::vector<RankData> Prepare(Op op, DType dtype, int64_t row_elements) {
    std::vector<RankData> data(size());
    for (RankData& mine : data) {
      mine.collective.op = op;
      mine.collective.dtype = dtype;
      mine.collective.row_elements = row_elements;
      mine.collective.device_class = testing::ClassOf(backend());
    }
    return data;
  }

  Bytes Input(int64_t elements, DType dtype) {
    return testing::RandomBits(static_cast<size_t>(elements) * DTypeBytes(dtype), ++seed_);
  }

  void Run(std::vector<RankData>* data) {
    for (const Status& status : RunInTurn(&all_, backend(), data)) ASSERT_TRUE(status.ok()) << status.message();
  }

  static void Append(Bytes* to, const Bytes& from, size_t begin, size_t bytes) {
    to->insert(to->end(), from.begin() + static_cast<std::ptrdiff_t>(begin),
               from.begin() + static_cast<std::ptrdiff_t>(begin + bytes));
  }

  Ranks all_;
  uint64_t seed_ = 0;
};

TEST_P(MoveOnRanksTest, AllgathersDifferentNumbersOfRows) {
  for (const DType dtype : testing::AllDTypes()) {
    for (const int64_t row : {1, 5, 300}) {
      for (const int64_t most : {0, 1, 4, 23}) {
        std::vector<RankData> data = Prepare(Op::kAllgather, dtype, row);
        Bytes expected;
        std::vector<int64_t> rows;
        for (size_t r = 0; r < size(); ++r) {
          rows.push_back(most == 0 ? 0 : static_cast<int64_t>((seed_ * 7 + r * 3) % static_cast<uint64_t>(most + 1)));
          data[r].inputs.push_back(Input(rows[r] * row, dtype));
          Append(&expected, data[r].inputs[0], 0, data[r].inputs[0].size());
          testing::BindVariable(&data[r]);
        }
        Run(&data);
        for (size_t r = 0; r < size(); ++r) {
          ASSERT_EQ(data[r].variable.rows, rows) << "rank " << r;
          ASSERT_TRUE(data[r].result == expected) << "rank " << r << " " << DTypeName(dtype) << " row " << row;
          ASSERT_EQ(data[r].allocations, 1);
        }
      }
    }
  }
}

TEST_P(MoveOnRanksTest, RowsThatNoPartCoversAreZeroOrKeepTheirValues) {
  if (testing::ClassOf(backend()) != wire::DeviceClass::kCpu) GTEST_SKIP() << "only the host takes a caller's memory";
  for (const bool keeps : {false, true}) {
    for (const int64_t rows : {2, 1500}) {
      std::vector<RankData> data = Prepare(Op::kAllgather, DType::kUint8, 3);
      std::vector<int64_t> starts;  // backwards, with a gap before each part
      for (int r = 0; r < n(); ++r) starts.push_back(1 + (n() - 1 - r) * (rows + 2));
      Bytes expected(static_cast<size_t>(starts[0] + rows) * 3, keeps ? std::byte{0x5a} : std::byte{0});
      for (size_t r = 0; r < size(); ++r) {
        data[r].inputs.push_back(Input(rows * 3, DType::kUint8));
        std::ranges::copy(data[r].inputs[0], expected.begin() + starts[r] * 3);
        data[r].collective.receive_rows.assign(size(), rows);
        data[r].collective.receive_starts = starts;
        testing::BindVariable(&data[r]);
        data[r].variable.keeps_gaps = keeps;
      }
      Run(&data);
      for (size_t r = 0; r < size(); ++r) ASSERT_TRUE(data[r].result == expected) << "rank " << r << " keeps " << keeps;
    }
  }
}

TEST_P(MoveOnRanksTest, GathersToTheRootOnly) {
  for (int root = 0; root < n(); ++root) {
    std::vector<RankData> data = Prepare(Op::kGather, DType::kInt32, 7);
    Bytes expected;
    std::vector<int64_t> rows;
    for (size_t r = 0; r < size(); ++r) {
      rows.push_back(static_cast<int64_t>(r * 40));
      data[r].collective.root = root;
      data[r].inputs.push_back(Input(rows[r] * 7, DType::kInt32));
      Append(&expected, data[r].inputs[0], 0, data[r].inputs[0].size());
      testing::BindVariable(&data[r]);
    }
    Run(&data);
    for (size_t r = 0; r < size(); ++r) {
      const bool is_root = static_cast<int>(r) == root;
      EXPECT_TRUE(data[r].result == (is_root ? expected : Bytes())) << "rank " << r << " root " << root;
      EXPECT_EQ(data[r].variable.rows, is_root ? rows : std::vector<int64_t>(size(), 0));
    }
  }
}

TEST_P(MoveOnRanksTest, ScattersTheRootsRows) {
  for (int root = 0; root < n(); ++root) {
    std::vector<RankData> data = Prepare(Op::kScatter, DType::kFloat64, 11);
    std::vector<int64_t> splits;
    int64_t total = 0;
    for (size_t r = 0; r < size(); ++r) total += splits.emplace_back(static_cast<int64_t>((r * 31) % 60));
    const Bytes input = Input(total * 11, DType::kFloat64);
    size_t at = 0;
    for (size_t r = 0; r < size(); ++r) {
      data[r].collective.root = root;
      data[r].inputs.emplace_back();
      if (static_cast<int>(r) == root) {
        data[r].inputs[0] = input;
        data[r].collective.splits = splits;
      }
      testing::BindVariable(&data[r]);
    }
    Run(&data);
    for (size_t r = 0; r < size(); ++r) {
      Bytes expected;
      const size_t bytes = static_cast<size_t>(splits[r]) * 11 * 8;
      Append(&expected, input, at, bytes);
      at += bytes;
      EXPECT_TRUE(data[r].result == expected) << "rank " << r << " root " << root;
      std::vector<int64_t> rows(size(), 0);
      rows[static_cast<size_t>(root)] = splits[r];
      EXPECT_EQ(data[r].variable.rows, rows);
    }
  }
}

TEST_P(MoveOnRanksTest, SendsEveryRankItsSplit) {
  for (const DType dtype : {DType::kUint8, DType::kFloat32, DType::kComplex128}) {
    for (const int64_t scale : {0, 1, 9, 150}) {
      std::vector<RankData> data = Prepare(Op::kAlltoall, dtype, 3);
      std::vector<std::vector<int64_t>> splits(size());
      for (size_t r = 0; r < size(); ++r) {
        int64_t total = 0;
        for (size_t d = 0; d < size(); ++d) {
          total += splits[r].emplace_back(static_cast<int64_t>((r * 5 + d * 3 + 1) % 4) * scale);
        }
        data[r].collective.splits = splits[r];
        data[r].inputs.push_back(Input(total * 3, dtype));
        testing::BindVariable(&data[r]);
      }
      Run(&data);
      const size_t row = 3 * DTypeBytes(dtype);
      for (size_t d = 0; d < size(); ++d) {
        Bytes expected;
        std::vector<int64_t> rows;
        for (size_t r = 0; r < size(); ++r) {
          size_t first = 0;
          for (size_t i = 0; i < d; ++i) first += static_cast<size_t>(splits[r][i]);
          rows.push_back(splits[r][d]);
          Append(&expected, data[r].inputs[0], first * row, static_cast<size_t>(splits[r][d]) * row);
        }
        ASSERT_TRUE(data[d].result == expected) << "rank " << d << " " << DTypeName(dtype) << " scale " << scale;
        ASSERT_EQ(data[d].variable.rows, rows);
      }
    }
  }
}

TEST_P(MoveOnRanksTest, BroadcastsSegmentsInPlaceAndOutOfPlace) {
  for (int root = 0; root < n(); ++root) {
    for (const auto& counts : std::vector<std::vector<int64_t>>{{1}, {0}, {}, {3, 0, 900, 1, 1}, {5000, 77}}) {
      for (const bool in_place : {false, true}) {
        std::vector<RankData> data = Prepare(Op::kBroadcast, DType::kFloat32, 1);
        for (size_t r = 0; r < size(); ++r) {
          data[r].collective.root = root;
          for (const int64_t count : counts) {
            data[r].inputs.push_back(Input(count, DType::kFloat32));
            if (!in_place) data[r].outputs.emplace_back(data[r].inputs.back().size());
          }
          testing::Bind(&data[r]);
        }
        const std::vector<Bytes> expected = data[static_cast<size_t>(root)].inputs;
        Run(&data);
        for (size_t r = 0; r < size(); ++r) {
          ASSERT_TRUE((in_place ? data[r].inputs : data[r].outputs) == expected) << "rank " << r << " root " << root;
        }
      }
    }
  }
}

TEST_P(MoveOnRanksTest, LeavesJoinedRanksWithoutRows) {
  if (n() < 2) GTEST_SKIP() << "the test needs two ranks";
  for (const Op op : {Op::kAllgather, Op::kAlltoall}) {
    std::vector<RankData> data = Prepare(op, DType::kInt16, 2);
    const size_t joined = size() - 1;
    Bytes expected;
    for (size_t r = 0; r < size(); ++r) {
      data[r].collective.joined = {static_cast<int32_t>(joined)};
      data[r].inputs.push_back(r == joined ? Bytes() : Input(2 * 4, DType::kInt16));
      if (op == Op::kAlltoall && r != joined) {
        data[r].collective.splits.assign(size(), 0);
        data[r].collective.splits[0] = 4;
      }
      Append(&expected, data[r].inputs[0], 0, data[r].inputs[0].size());
      testing::BindVariable(&data[r]);
    }
    Run(&data);
    EXPECT_TRUE(data[0].result == expected);
    EXPECT_EQ(data[0].variable.rows[joined], 0);
    EXPECT_EQ(data[joined].allocations, 0);
  }
}

TEST_P(MoveOnRanksTest, KeepsRowsWithoutElements) {
  std::vector<RankData> data = Prepare(Op::kAllgather, DType::kFloat32, 0);
  for (size_t r = 0; r < size(); ++r) {
    data[r].collective.rows = static_cast<int64_t>(r) + 2;
    data[r].inputs.emplace_back();
    testing::BindVariable(&data[r]);
  }
  Run(&data);
  for (size_t r = 0; r < size(); ++r) {
    for (size_t q = 0; q < size(); ++q) EXPECT_EQ(data[r].variable.rows[q], static_cast<int64_t>(q) + 2);
  }
}

TEST_P(MoveOnRanksTest, ABarrierWaitsForTheLastRank) {
  if (backend() == "fakedevice") GTEST_SKIP() << "is not deterministic in one thread";
  std::vector<std::unique_ptr<CollectiveTask>> operations;
  Collective barrier;
  barrier.op = Op::kBarrier;
  for (int turn = 0; turn < 10; ++turn) {
    operations.clear();
    for (int r = 0; r < n(); ++r) operations.push_back(all_.backend(r, backend()).Start(barrier));
    for (int r = 0; r + 1 < n(); ++r) {
      EXPECT_FALSE(operations[static_cast<size_t>(r)]->Test()) << "rank " << r << " turn " << turn;
      const std::vector<int> missing = operations[static_cast<size_t>(r)]->WaitingFor();
      EXPECT_EQ(missing.size(), static_cast<size_t>(n() - 1 - r));
      if (!missing.empty()) {
        EXPECT_EQ(missing.back(), n() - 1);
      }
    }
    for (int r = n() - 1; r >= 0; --r) EXPECT_TRUE(operations[static_cast<size_t>(r)]->Test()) << "rank " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MoveOnRanksTest,
                         ::testing::Values(std::tuple("shm", 1), std::tuple("shm", 2), std::tuple("shm", 3),
                                           std::tuple("shm", 4), std::tuple("shm", 5), std::tuple("loopback", 1),
                                           std::tuple("fakedevice", 1), std::tuple("fakedevice", 3),
                                           std::tuple("staged", 1), std::tuple("staged", 3), std::tuple("nccl", 1),
                                           std::tuple("nccl", 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace horocache::data
