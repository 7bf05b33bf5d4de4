// Displacements and expected numbers of rows: the places of the rows in the result, and the error on every rank if one
// rank is wrong.
#include "data/row_layout.h"

#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "data/numbers.h"
#include "data/ranks.h"
#include "data/zero_fill.h"

namespace horocache::data {
namespace {

using testing::Bytes;
using testing::RankData;
using testing::Ranks;
using testing::RunInTurn;
using wire::Op;

using Numbers = std::vector<int64_t>;

Collective Of(Op op, int64_t rows, int64_t row_elements = 1) {
  Collective c;
  c.op = op;
  c.root = wire::HasRoot(op) ? 0 : -1;
  c.row_elements = row_elements;
  c.segments.push_back({nullptr, nullptr, rows * row_elements});
  return c;
}

std::string Firsts(const std::vector<RowPart>& parts) {
  std::string text;
  for (const RowPart& part : parts) text += std::to_string(part.first) + "+" + std::to_string(part.count) + " ";
  return text;
}

std::string Error(const Status& status, StatusCode code) {
  EXPECT_EQ(status.code(), code) << status.message();
  return status.message();
}

void ExpectIn(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(SendParts, FollowTheSplitsAndTheStarts) {
  Collective c = Of(Op::kAlltoall, 6, 10);
  EXPECT_EQ(Firsts(*SendParts(c, 1, 3)), "0+20 20+20 40+20 ");
  c.splits = {1, 0, 5};
  EXPECT_EQ(Firsts(*SendParts(c, 1, 3)), "0+10 10+0 10+50 ");
  c.send_starts = {5, 6, 1};
  EXPECT_EQ(Firsts(*SendParts(c, 1, 3)), "50+10 60+0 10+50 ") << "parts that are sent may overlap";
  c.joined = {2};
  EXPECT_EQ(Firsts(*SendParts(c, 1, 3)), "50+10 60+0 10+0 ") << "rows for a joined rank are not dropped";
  EXPECT_EQ(Firsts(*SendParts(c, 2, 3)), "0+0 0+0 0+0 ");
}

TEST(SendParts, AreFromTheRootInAScatterAndToTheRootInAGather) {
  EXPECT_EQ(Firsts(*SendParts(Of(Op::kScatter, 4), 0, 2)), "0+2 2+2 ");
  EXPECT_EQ(Firsts(*SendParts(Of(Op::kScatter, 3), 1, 2)), "0+0 0+0 ");
  EXPECT_EQ(Firsts(*SendParts(Of(Op::kGather, 3), 1, 2)), "0+3 0+0 ");
  EXPECT_EQ(Firsts(*SendParts(Of(Op::kAllgather, 3), 1, 2)), "0+3 0+3 ");
}

TEST(SendParts, RefuseSplitsThatDoNotFitTheTensor) {
  Collective c = Of(Op::kScatter, 5);
  const auto error = [&] { return Error(SendParts(c, 0, 2).status(), StatusCode::kInvalidArgument); };
  ExpectIn(error(), "rank 0 submitted wrong arguments: 5 rows cannot be shared out evenly among 2 ranks");
  c.splits = {1, 2, 2};
  ExpectIn(error(), "rows for each rank has 3 numbers for 2 ranks");
  c.splits = {6, -1};
  ExpectIn(error(), "has -1 for rank 1");
  c.splits = {2, 2};
  ExpectIn(error(), "add up to 4 rows, but the tensor has 5");
  c.send_starts = {0, 4};
  ExpectIn(error(), "2 rows for rank 1, from row 4 on, are not within the tensor, which has 5 rows");
  c.send_starts = {0, INT64_MAX};
  ExpectIn(error(), "are not within the tensor");
  c.send_starts = {0, -3};
  ExpectIn(error(), "displacements has -3 for rank 1");
  c.send_starts = {0};
  ExpectIn(error(), "displacements has 1 numbers for 2 ranks");
}

TEST(PlanReceive, PutsPartsInOrderOrAtTheirDisplacements) {
  Collective c = Of(Op::kAllgather, 2, 10);
  StatusOr<ReceivePlan> plan = PlanReceive(c, {2, 0, 3}, 1, 3);
  EXPECT_EQ(Firsts(plan->parts), "0+20 20+0 20+30 ");
  EXPECT_EQ(plan->elements, 50);
  EXPECT_FALSE(plan->gaps);
  c.receive_starts = {4, 0, 1};
  plan = PlanReceive(c, {2, 0, 3}, 1, 3);
  EXPECT_EQ(Firsts(plan->parts), "40+20 0+0 10+30 ");
  EXPECT_EQ(plan->elements, 60);
  EXPECT_TRUE(plan->gaps);
  EXPECT_EQ(Firsts(GapsOf(*plan)), "0+10 ");
  c.receive_starts = {7, 9, 1};
  plan = PlanReceive(c, {2, 0, 3}, 1, 3);
  EXPECT_EQ(plan->elements, 90) << "an empty part at row 9";
  EXPECT_EQ(Firsts(GapsOf(*plan)), "0+10 40+30 ");
}

TEST(PlanReceive, ComparesExpectedAndActualNumbersOfRows) {
  Collective c = Of(Op::kGather, 2);
  c.receive_rows = {2, 4, 1};
  ExpectIn(Error(PlanReceive(c, {2, 3, 1}, 0, 3).status(), StatusCode::kMismatch),
           "rank 0 expects 4 rows from rank 1, which sends 3");
  EXPECT_TRUE(PlanReceive(c, {0, 0, 0}, 1, 3).ok()) << "only the root's numbers matter";
  c.joined = {1};
  const StatusOr<ReceivePlan> plan = PlanReceive(c, {2, 0, 1}, 0, 3);
  EXPECT_EQ(Firsts(plan->parts), "0+2 2+0 2+1 ") << "a joined rank sends no rows, even if rows are expected";
  EXPECT_EQ(plan->elements, 3);
  c.receive_starts = {0, 2, 6};
  EXPECT_EQ(PlanReceive(c, {2, 0, 1}, 0, 3)->elements, 7) << "its place stays";
}

TEST(PlanReceive, RefusesOverlappingPartsAndInvalidLists) {
  Collective c = Of(Op::kAlltoall, 2);
  const auto error = [&] { return Error(PlanReceive(c, {2, 3, 1}, 2, 3).status(), StatusCode::kInvalidArgument); };
  c.receive_starts = {4, 2, 0};
  ExpectIn(
      error(),
      "rank 2 submitted wrong arguments: 2 rows from rank 0, from row 4 of the result on, overlap 3 rows from rank 1");
  c.receive_starts = {4, 4, 0};
  ExpectIn(error(), "overlap");
  c.receive_starts = {0, -2, 9};
  ExpectIn(error(), "displacements has -2 for rank 1");
  c.receive_starts = {0, 2};
  ExpectIn(error(), "displacements has 2 numbers for 3 ranks");
  c.receive_starts = {0, 2, INT64_MAX};
  ExpectIn(error(), "more than there can be");
  c.op = Op::kReducescatter;
  ExpectIn(error(), "takes no expected rows");
}

class PlacedRowsTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  PlacedRowsTest() : all_(std::get<1>(GetParam()), testing::SmallTiles()) {}

  const std::string& backend() const { return std::get<0>(GetParam()); }
  size_t n() const { return static_cast<size_t>(all_.size()); }

  // Returns an operation on rows of 6 bytes for each rank; SetRows adds the rows.
  std::vector<RankData> Prepare(Op op, int root = -1) {
    std::vector<RankData> data(n());
    for (RankData& mine : data) {
      mine.collective.op = op;
      mine.collective.root = root;
      mine.collective.dtype = DType::kInt16;
      mine.collective.row_elements = 3;
      mine.collective.device_class = testing::ClassOf(backend());
      mine.inputs.emplace_back();
    }
    return data;
  }

  static void SetRows(RankData* data, int64_t rows, uint64_t seed) {
    data->inputs[0] = testing::RandomBits(static_cast<size_t>(rows) * 6, seed);
    testing::BindVariable(data);
  }

  // Copies the rows [first, first + count) of `from` to row `start` of the expected result `to`.
  static void Place(const Bytes& from, int64_t first, int64_t count, int64_t start, Bytes* to) {
    const size_t end = static_cast<size_t>(start + count) * 6;
    if (to->size() < end) to->resize(end);
    std::copy_n(from.begin() + first * 6, count * 6, to->begin() + start * 6);
  }

  std::vector<Status> Run(std::vector<RankData>* data) { return RunInTurn(&all_, backend(), data); }
  void RunWell(std::vector<RankData>* data) {
    for (const Status& status : Run(data)) ASSERT_TRUE(status.ok()) << status.message();
  }

  Ranks all_;
};

TEST_P(PlacedRowsTest, AlltoallUsesDisplacementsOnBothSides) {
  std::mt19937_64 random(11);
  for (const uint64_t most : {0u, 3u, 400u}) {
    for (int turn = 0; turn < 4; ++turn) {
      std::vector<RankData> data = Prepare(Op::kAlltoall);
      std::vector<Numbers> splits(n()), starts(n());
      for (size_t r = 0; r < n(); ++r) {
        int64_t rows = 0;
        for (size_t d = 0; d < n(); ++d) {
          splits[r].push_back(static_cast<int64_t>(random() % (most + 1)));
          starts[r].push_back(static_cast<int64_t>(random() % 5));
          rows = std::max(rows, starts[r][d] + splits[r][d]);
        }
        data[r].collective.splits = splits[r];
        data[r].collective.send_starts = starts[r];
        SetRows(&data[r], rows, random());
      }
      std::vector<Bytes> expected(n());
      for (size_t d = 0; d < n(); ++d) {
        Collective& c = data[d].collective;
        // The last rank's part comes first, with gaps between the parts.
        int64_t at = static_cast<int64_t>(random() % 3);
        c.receive_starts.assign(n(), 0);
        c.receive_rows.assign(n(), 0);
        for (size_t r = n(); r-- > 0;) {
          c.receive_starts[r] = at;
          c.receive_rows[r] = splits[r][d];
          Place(data[r].inputs[0], starts[r][d], splits[r][d], at, &expected[d]);
          at += splits[r][d] + static_cast<int64_t>(random() % 200);
        }
        if (turn % 2 == 0) c.receive_rows.clear();
      }
      RunWell(&data);
      for (size_t d = 0; d < n(); ++d) {
        ASSERT_TRUE(data[d].result == expected[d]) << "rank " << d << " turn " << turn << " most " << most;
        for (size_t r = 0; r < n(); ++r) ASSERT_EQ(data[d].variable.rows[r], splits[r][d]);
      }
    }
  }
}

TEST_P(PlacedRowsTest, GatherAndAllgatherUseDisplacements) {
  for (const Op op : {Op::kGather, Op::kAllgather}) {
    const int root = op == Op::kGather ? all_.size() - 1 : -1;
    std::vector<RankData> data = Prepare(op, root);
    Bytes expected;
    Numbers starts, rows;
    for (size_t r = 0; r < n(); ++r) {
      rows.push_back(static_cast<int64_t>(r * 150));
      starts.push_back(static_cast<int64_t>((n() - r) * 1000));
      SetRows(&data[r], rows[r], r);
      Place(data[r].inputs[0], 0, rows[r], starts[r], &expected);
    }
    for (size_t r = 0; r < n(); ++r) {
      if (root >= 0 && static_cast<int>(r) != root) continue;
      data[r].collective.receive_starts = starts;
      if (r % 2 == 0) data[r].collective.receive_rows = rows;
    }
    RunWell(&data);
    for (size_t r = 0; r < n(); ++r) {
      if (root >= 0 && static_cast<int>(r) != root) {
        EXPECT_TRUE(data[r].result.empty());
      } else {
        EXPECT_TRUE(data[r].result == expected) << wire::OpName(op) << " rank " << r;
      }
    }
  }
}

TEST_P(PlacedRowsTest, ScatterUsesDisplacementsInTheRootsTensor) {
  for (int root = 0; root < all_.size(); ++root) {
    std::vector<RankData> data = Prepare(Op::kScatter, root);
    for (size_t r = 0; r < n(); ++r) SetRows(&data[r], static_cast<int>(r) == root ? 300 : static_cast<int>(r), r);
    Collective& c = data[static_cast<size_t>(root)].collective;
    for (size_t r = 0; r < n(); ++r) {
      c.splits.push_back(static_cast<int64_t>(r * 60));
      c.send_starts.push_back(static_cast<int64_t>(r * 7));
    }
    RunWell(&data);
    for (size_t r = 0; r < n(); ++r) {
      Bytes expected;
      Place(data[static_cast<size_t>(root)].inputs[0], c.send_starts[r], c.splits[r], 0, &expected);
      EXPECT_TRUE(data[r].result == expected) << "rank " << r << " root " << root;
    }
  }
}

TEST_P(PlacedRowsTest, AWrongExpectationOfOneRankFailsAllRanksAndTheLaneGoesOn) {
  for (const Op op : {Op::kGather, Op::kAllgather, Op::kAlltoall}) {
    for (const bool overlap : {false, true}) {
      if (overlap && n() == 1) continue;
      std::vector<RankData> data = Prepare(op, op == Op::kGather ? 0 : -1);
      for (size_t r = 0; r < n(); ++r) SetRows(&data[r], static_cast<int64_t>(n() * 100), r);
      Collective& c = data[0].collective;
      const int64_t comes = static_cast<int64_t>(op == Op::kAlltoall ? 100 : n() * 100);
      if (overlap) {
        c.receive_starts.assign(n(), 5);
      } else {
        c.receive_rows.assign(n(), comes);
        c.receive_rows[n() - 1] = 7;
      }
      for (const Status& status : Run(&data)) {
        EXPECT_EQ(status.code(), overlap ? StatusCode::kInvalidArgument : StatusCode::kMismatch) << status.message();
        ExpectIn(status.message(), "rank 0");
        ExpectIn(status.message(), overlap ? "overlap" : "which sends " + std::to_string(comes));
      }
      for (const RankData& mine : data) EXPECT_EQ(mine.allocations, 0);
      std::vector<RankData> again = Prepare(Op::kAllgather);
      for (size_t r = 0; r < n(); ++r) SetRows(&again[r], 1, r);
      RunWell(&again);
    }
  }
}

TEST_P(PlacedRowsTest, InvalidListsFailOnAllRanks) {
  std::vector<RankData> data = Prepare(Op::kGather, 0);
  for (size_t r = 0; r < n(); ++r) SetRows(&data[r], 2, r);
  data[0].collective.receive_rows.assign(n() + 1, 2);
  const std::vector<Status> statuses = Run(&data);
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_EQ(status.message(), statuses[0].message());
  }
}

TEST_P(PlacedRowsTest, JoinedRanksSendAndReceiveNoRows) {
  if (n() < 2) GTEST_SKIP() << "the test needs two ranks";
  const auto joined = static_cast<int>(n() - 1);
  for (const Op op : {Op::kAlltoall, Op::kGather, Op::kScatter, Op::kReducescatter, Op::kBarrier}) {
    std::vector<RankData> data = Prepare(op, wire::HasRoot(op) ? 0 : -1);
    for (size_t r = 0; r < n(); ++r) {
      Collective& c = data[r].collective;
      c.joined = {joined};
      if (op == Op::kBarrier) continue;
      const bool lives = static_cast<int>(r) != joined;
      SetRows(&data[r], lives || op == Op::kReducescatter ? static_cast<int64_t>(n() * 50) : 0, r);
      if (!lives) c.segments[0].input = nullptr;
      // A joined rank has no splits.
      if (op == Op::kReducescatter && lives) {
        c.splits.assign(n(), 0);
        c.splits[0] = static_cast<int64_t>(n() * 50);
      }
    }
    RunWell(&data);
    EXPECT_EQ(data[static_cast<size_t>(joined)].allocations, 0) << wire::OpName(op);
    if (op == Op::kAlltoall || op == Op::kGather) {
      EXPECT_EQ(data[0].variable.rows[static_cast<size_t>(joined)], 0) << wire::OpName(op);
      EXPECT_EQ(data[0].result.size(), (n() - 1) * (op == Op::kAlltoall ? 50 : n() * 50) * 6);
    } else if (op != Op::kBarrier) {
      EXPECT_EQ(data[0].result.size(), (op == Op::kScatter ? 50 : n() * 50) * 6);
    }
  }
}

TEST_P(PlacedRowsTest, ARootThatHasJoinedIsRefused) {
  for (const Op op : {Op::kReduce, Op::kGather, Op::kScatter, Op::kBroadcast}) {
    Collective c = Prepare(op, 0)[0].collective;
    c.joined = {0};
    const Status status = all_.backend(0, backend()).Supports(c);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    ExpectIn(status.message(), "root 0 has joined");
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, PlacedRowsTest,
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
