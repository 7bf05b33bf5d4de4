// The shm backend apart from its results: mismatches, order, threads, waiting, wake-ups, counters.
#include <gtest/gtest.h>

#include <string>

#include "data/backends/shm/tile_slots.h"
#include "data/numbers.h"
#include "data/ranks.h"

namespace horocache::data {
namespace {

using testing::Bytes;
using testing::RankData;
using testing::Ranks;
using testing::RunInTurn;
using wire::Op;

BackendOptions Tiles(int64_t tile_bytes, int64_t oneshot_max_bytes = 0) {
  BackendOptions options;
  options.tile_bytes = tile_bytes;
  options.oneshot_max_bytes = oneshot_max_bytes;
  return options;
}

std::vector<RankData> Floats(const Ranks& ranks, std::vector<int64_t> counts, Op op = Op::kAllreduce) {
  std::vector<RankData> data(static_cast<size_t>(ranks.size()));
  for (size_t r = 0; r < data.size(); ++r) {
    data[r].collective.op = op;
    data[r].inputs.push_back(testing::SmallNumbers(DType::kFloat32, static_cast<size_t>(counts[r % counts.size()]), r));
  }
  return data;
}

void BindAll(std::vector<RankData>* data) {
  for (RankData& mine : *data) testing::Bind(&mine);
}

// Expects that the collective ends on all ranks with a kMismatch that contains `word` and names a rank, and that the
// lane works afterwards.
void ExpectMismatchAndRecovery(Ranks* ranks, std::vector<RankData>* data, const std::string& word) {
  const std::vector<Status> statuses = RunInTurn(ranks, "shm", data, 10000);
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("rank "), std::string::npos);
  }
  for (const int64_t count : {1, 5000}) {
    std::vector<RankData> again = Floats(*ranks, {count});
    BindAll(&again);
    for (const Status& status : RunInTurn(ranks, "shm", &again, 10000)) EXPECT_TRUE(status.ok()) << status.message();
    for (const RankData& mine : again) EXPECT_TRUE(mine.inputs == again[0].inputs);
  }
}

class ShmMismatchTest : public ::testing::TestWithParam<int> {
 protected:
  ShmMismatchTest() : ranks_(3, Tiles(512, GetParam())) {}
  Ranks ranks_;
};

TEST_P(ShmMismatchTest, FailsOnAllRanksWhenCountsDiffer) {
  for (const int64_t other : {0, 1, 999, 4000}) {
    std::vector<RankData> data = Floats(ranks_, {1000, other, 1000});
    BindAll(&data);
    ExpectMismatchAndRecovery(&ranks_, &data, std::to_string(other) + " elements");
  }
}

TEST_P(ShmMismatchTest, FailsOnAllRanksWhenOneRankRunsAnotherOperation) {
  for (const Op op : {Op::kBroadcast, Op::kBarrier, Op::kAllgather, Op::kAlltoall, Op::kReducescatter}) {
    std::vector<RankData> data = Floats(ranks_, {2001});
    data[1].collective.op = op;
    data[1].collective.root = op == Op::kBroadcast ? 1 : -1;
    testing::Bind(&data[0]);
    testing::Bind(&data[2]);
    testing::BindVariable(&data[1]);
    ExpectMismatchAndRecovery(&ranks_, &data, std::string(wire::OpName(op)));
  }
}

TEST_P(ShmMismatchTest, FailsOnAllRanksWhenDtypeOrScaleOrSequenceDiffer) {
  std::vector<RankData> data = Floats(ranks_, {2000});
  data[2].collective.dtype = DType::kInt32;
  BindAll(&data);
  ExpectMismatchAndRecovery(&ranks_, &data, "int32");
  data = Floats(ranks_, {2000});
  data[0].collective.postscale = 0.5;
  BindAll(&data);
  ExpectMismatchAndRecovery(&ranks_, &data, "scales");
  data = Floats(ranks_, {2000});
  data[0].collective.sequence = 77;
  BindAll(&data);
  ExpectMismatchAndRecovery(&ranks_, &data, "sequence 77");
}

TEST_P(ShmMismatchTest, FailsOnAllRanksWhenTheSplitsOfOneRankDoNotFit) {
  std::vector<RankData> data = Floats(ranks_, {30}, Op::kAlltoall);
  for (RankData& mine : data) {
    mine.collective.splits = {10, 10, 10};
    testing::BindVariable(&mine);
  }
  data[1].collective.splits = {10, 10, 11};
  const std::vector<Status> statuses = RunInTurn(&ranks_, "shm", &data, 10000);
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("31 rows"), std::string::npos) << status.message();
  }
}

TEST_P(ShmMismatchTest, FailsOnAllRanksWhenReducescatterSplitsDiffer) {
  std::vector<RankData> data = Floats(ranks_, {30}, Op::kReducescatter);
  for (RankData& mine : data) {
    mine.collective.splits = {10, 10, 10};
    testing::BindVariable(&mine);
  }
  data[2].collective.splits = {0, 0, 30};
  ExpectMismatchAndRecovery(&ranks_, &data, "rank 0 gives rank 0 10 rows, rank 2 gives it 0");
}

INSTANTIATE_TEST_SUITE_P(Algorithms, ShmMismatchTest, ::testing::Values(0, 1 << 20), [](const auto& info) {
  return info.param == 0 ? std::string("twoshot") : std::string("oneshot");
});

TEST(ShmErrors, AreGivenBeforeAnythingIsSent) {
  Ranks ranks(2);
  Backend& shm = ranks.backend(0, "shm");
  Collective c;
  c.dtype = DType::kComplex64;
  c.reduce_op = wire::ReduceOp::kMax;
  EXPECT_EQ(shm.Supports(c).code(), StatusCode::kUnsupported);
  c = Collective();
  c.device_class = wire::DeviceClass::kCuda;
  EXPECT_NE(shm.Supports(c).message().find("copy the tensor to the host"), std::string::npos);
  c = Collective();
  c.op = Op::kSend;
  EXPECT_EQ(shm.Supports(c).code(), StatusCode::kUnsupported);
  c = Collective();
  c.op = Op::kBroadcast;
  c.root = 2;
  EXPECT_NE(shm.Supports(c).message().find("root 2 is not one of 2 ranks"), std::string::npos);
  c.root = 1;
  c.joined = {1};
  EXPECT_NE(shm.Supports(c).message().find("choose another root"), std::string::npos);
  c.joined = {5};
  EXPECT_EQ(shm.Supports(c).code(), StatusCode::kInvalidArgument);
  c = Collective();
  c.algorithm = 9;
  EXPECT_EQ(shm.Supports(c).code(), StatusCode::kUnsupported);
  c.algorithm = 2;
  EXPECT_TRUE(shm.Supports(c).ok());
  c.op = Op::kAllgather;
  EXPECT_NE(shm.Supports(c).message().find("shm/twoshot runs allreduce and reduce; allgather has"), std::string::npos);
}

std::vector<Status> RunWithoutMemoryOnRank1(Ranks* ranks, std::vector<RankData>* data) {
  for (RankData& mine : *data) testing::BindVariable(&mine);
  (*data)[1].variable.allocate = [](int64_t) -> StatusOr<std::byte*> {
    return Status(StatusCode::kOutOfMemory, "none left");
  };
  return RunInTurn(ranks, "shm", data, 100000);
}

TEST(ShmErrors, OfSmallAllocationsFailOneRankAndLetTheOthersFinish) {
  Ranks ranks(3, Tiles(512));
  std::vector<RankData> data = Floats(ranks, {5000}, Op::kAllgather);
  const std::vector<Status> statuses = RunWithoutMemoryOnRank1(&ranks, &data);
  EXPECT_TRUE(statuses[0].ok());
  EXPECT_EQ(statuses[1].code(), StatusCode::kOutOfMemory);
  EXPECT_TRUE(statuses[2].ok());
  EXPECT_TRUE(data[0].result == data[2].result);
}

TEST(ShmErrors, OfLargeAllocationsFailAllRanksAndTheLaneGoesOn) {
  for (const Op op : {Op::kAllgather, Op::kAlltoall, Op::kReducescatter}) {
    Ranks ranks(3, Tiles(4096));
    std::vector<RankData> data = Floats(ranks, {900'000}, op);
    const std::vector<Status> statuses = RunWithoutMemoryOnRank1(&ranks, &data);
    for (const Status& status : statuses) EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << wire::OpName(op);
    EXPECT_EQ(statuses[1].message(), "none left");
    EXPECT_NE(statuses[2].message().find("rank 1 has no memory for its result of "), std::string::npos);
    data = Floats(ranks, {900'000}, op);
    for (RankData& mine : data) testing::BindVariable(&mine);
    for (const Status& status : RunInTurn(&ranks, "shm", &data, 100000)) EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

TEST(ShmQueueTest, RunsStartedOperationsInOrderInAnyOrderOfTests) {
  Ranks ranks(3, Tiles(512, 100));
  constexpr int kOperations = 20;
  std::vector<std::vector<RankData>> data;
  std::vector<std::vector<std::unique_ptr<CollectiveTask>>> operations(3);
  for (int i = 0; i < kOperations; ++i) {
    data.push_back(Floats(ranks, {i * 37 % 500}));
    BindAll(&data.back());
    for (size_t r = 0; r < 3; ++r) {
      operations[r].push_back(ranks.backend(static_cast<int>(r), "shm").Start(data.back()[r].collective));
    }
  }
  // Each rank tests its operations in its own order. To test only the last one is enough to drive all of them.
  bool all_done = false;
  for (int turn = 0; turn < 1000 && !all_done; ++turn) {
    all_done = operations[0].back()->Test();
    all_done = operations[1][static_cast<size_t>(turn) % kOperations]->Test() && all_done;
    all_done = operations[1].back()->Test() && all_done;
    all_done = operations[2].back()->Test() && all_done;
  }
  EXPECT_TRUE(all_done);
  for (size_t r = 0; r < 3; ++r) {
    for (int i = 0; i < kOperations; ++i) {
      EXPECT_TRUE(operations[r][static_cast<size_t>(i)]->Test()) << "rank " << r << " operation " << i;
      EXPECT_TRUE(data[static_cast<size_t>(i)][r].inputs == data[static_cast<size_t>(i)][0].inputs);
    }
  }
}

TEST(ShmQueueTest, FailsOperationsBehindADroppedOne) {
  Ranks ranks(2, Tiles(512));
  std::vector<RankData> data = Floats(ranks, {4000});
  BindAll(&data);
  auto first = ranks.backend(0, "shm").Start(data[0].collective);
  auto second = ranks.backend(0, "shm").Start(data[0].collective);
  EXPECT_FALSE(first->Test());
  first.reset();
  EXPECT_TRUE(second->Test());
  EXPECT_EQ(second->status().code(), StatusCode::kAborted);
  auto third = ranks.backend(0, "shm").Start(data[0].collective);
  EXPECT_TRUE(third->Test());
  EXPECT_NE(third->status().message().find("half way"), std::string::npos);
}

TEST(ShmOperationTest, NamesTheRanksThatItWaitsFor) {
  Ranks ranks(3, Tiles(512));
  std::vector<RankData> data = Floats(ranks, {4000});
  BindAll(&data);
  auto zero = ranks.backend(0, "shm").Start(data[0].collective);
  auto one = ranks.backend(1, "shm").Start(data[1].collective);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(zero->Test());
  EXPECT_EQ(zero->WaitingFor(), (std::vector<int>{1, 2}));
  EXPECT_FALSE(zero->progressed());
  EXPECT_FALSE(one->Test());
  EXPECT_TRUE(one->progressed());
  EXPECT_FALSE(zero->Test());
  EXPECT_EQ(zero->WaitingFor(), std::vector<int>{2});
  auto two = ranks.backend(2, "shm").Start(data[2].collective);
  while (!two->Test() || !one->Test() || !zero->Test()) {
    one->Test();
    zero->Test();
  }
  EXPECT_TRUE(zero->WaitingFor().empty());
}

TEST(ShmOperationTest, RingsOtherRanksOnlyAfterItHasPublished) {
  Ranks ranks(3, Tiles(512));
  std::vector<RankData> data = Floats(ranks, {100});
  BindAll(&data);
  auto zero = ranks.backend(0, "shm").Start(data[0].collective);
  zero->Test();
  EXPECT_EQ(ranks.rings(0), 0u);
  EXPECT_EQ(ranks.rings(1), 1u);
  EXPECT_EQ(ranks.rings(2), 1u);
  for (int i = 0; i < 5; ++i) zero->Test();
  EXPECT_EQ(ranks.rings(1), 1u);
}

TEST(ShmOperationTest, DoesABoundedAmountOfWorkInOneTest) {
  Ranks ranks(2, Tiles(1 << 16), 1 << 20);
  std::vector<RankData> data = Floats(ranks, {4 << 20});
  BindAll(&data);
  auto zero = ranks.backend(0, "shm").Start(data[0].collective);
  auto one = ranks.backend(1, "shm").Start(data[1].collective);
  uint64_t before = 0;
  bool done = false;
  while (!done) {
    done = zero->Test();
    done = one->Test() && done;
    const DataCounters& counters = ranks.backend(0, "shm").counters();
    const uint64_t now = counters.bytes_copied + counters.bytes_folded;
    EXPECT_LE(now - before, uint64_t{1} << 20);
    before = now;
  }
}

TEST(ShmOperationTest, DoesABoundedNumberOfTinySegmentsInOneTest) {
  Ranks ranks(2, Tiles(1 << 16));
  std::vector<RankData> data(2);
  for (RankData& mine : data) {
    mine.inputs.resize(40000, Bytes(4));
    testing::Bind(&mine);
  }
  auto zero = ranks.backend(0, "shm").Start(data[0].collective);
  zero->Test();
  EXPECT_LE(ranks.backend(0, "shm").counters().bytes_copied, 4u * 5000);
  EXPECT_TRUE(zero->progressed());
  auto one = ranks.backend(1, "shm").Start(data[1].collective);
  while (!zero->Test() || !one->Test()) one->Test();
  EXPECT_TRUE(zero->status().ok());
}

TEST(ShmOperationTest, CountsBytes) {
  Ranks ranks(2, Tiles(4096));
  std::vector<RankData> data = Floats(ranks, {100000});
  BindAll(&data);
  RunInTurn(&ranks, "shm", &data);
  const DataCounters& counters = ranks.backend(0, "shm").counters();
  EXPECT_EQ(counters.operations, 1u);
  EXPECT_EQ(counters.payload_bytes, 400000u);
  // The rank packs one half of the tensor, folds the other half to two places, and unpacks one half.
  EXPECT_NEAR(static_cast<double>(counters.bytes_copied), 1.0 * 400000, 4096);
  EXPECT_NEAR(static_cast<double>(counters.bytes_folded), 1.0 * 400000, 4096);
}

TEST(ShmThreads, RunAllOperationsAtOnceWithEqualResults) {
  for (const int n : {2, 3, 4}) {
    Ranks ranks(n, Tiles(1024, 256));
    constexpr int kOperations = 60;
    std::vector<std::vector<RankData>> data(static_cast<size_t>(n), std::vector<RankData>(kOperations));
    const Op kinds[] = {Op::kAllreduce,     Op::kAllgather, Op::kBroadcast,
                        Op::kReducescatter, Op::kAlltoall,  Op::kBarrier};
    testing::RunOnThreads(n, [&](int rank) {
      auto& mine = data[static_cast<size_t>(rank)];
      for (int i = 0; i < kOperations; ++i) {
        RankData& d = mine[static_cast<size_t>(i)];
        d.collective.op = kinds[i % 6];
        d.collective.sequence = static_cast<uint64_t>(i);
        d.collective.root = d.collective.op == Op::kBroadcast ? i % n : -1;
        const int rows = i * 131 % 3000 / n * n;  // alltoall needs a multiple of n
        d.inputs.push_back(
            testing::SmallNumbers(DType::kFloat32, static_cast<size_t>(rows), static_cast<uint64_t>(rank)));
        if (i % 6 == 0 || i % 6 == 2) {
          testing::Bind(&d);
        } else {
          testing::BindVariable(&d);
        }
        const Status status = testing::Finish(ranks.backend(rank, "shm").Start(d.collective).get());
        EXPECT_TRUE(status.ok()) << status.message();
      }
    });
    for (int r = 1; r < n; ++r) {
      for (int i = 0; i < kOperations; ++i) {
        const RankData& zero = data[0][static_cast<size_t>(i)];
        const RankData& mine = data[static_cast<size_t>(r)][static_cast<size_t>(i)];
        if (i % 6 == 0 || i % 6 == 2) {
          EXPECT_TRUE(mine.inputs == zero.inputs) << "rank " << r << " operation " << i;
        } else if (i % 6 == 1) {
          EXPECT_TRUE(mine.result == zero.result) << "rank " << r << " operation " << i;
        }
      }
    }
  }
}

TEST(ShmPortTest, RefusesAnAreaThatIsTooSmallAndNamesTheKnob) {
  SharedArea area;
  area.size = 64;
  area.data.resize(64);
  area.data_bytes = 4096;
  const auto backends = MakeBackends(area, {});
  ASSERT_FALSE(backends.ok());
  EXPECT_NE(backends.status().message().find("shm_bytes=4096"), std::string::npos) << backends.status().message();
}

TEST(ShmPortTest, FitsTheTileIntoTheArea) {
  std::vector<std::byte> memory(8);
  SharedArea area;
  area.data = {memory.data(), memory.data(), memory.data()};
  area.size = 3;
  area.data_bytes = 1 << 18;
  EXPECT_EQ(ShmPort(area, 1 << 24).tile_bytes() % (3 * 64), 0);
  EXPECT_LT(ShmPort(area, 1 << 24).tile_bytes() * ShmPort::kDepth, 1 << 18);
  EXPECT_EQ(ShmPort(area, 1).tile_bytes(), 3 * 64);
}

}  // namespace
}  // namespace horocache::data
