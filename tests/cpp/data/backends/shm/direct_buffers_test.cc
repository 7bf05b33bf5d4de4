// Direct allreduce: the tensors of all ranks lie in their regions. No rank copies anything, and the results have the
// same bits as an allreduce through tiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "data/backends/shm/tile_slots.h"
#include "data/numbers.h"
#include "data/ranks.h"

namespace horocache::data {
namespace {

using testing::Bytes;
using testing::RankData;
using testing::Ranks;
using testing::RunInTurn;

constexpr size_t kRegionBytes = size_t{4} << 20;

// The ranks of a job, each with a region for tensors.
class Shared {
 public:
  Shared(int size, BackendOptions options) : regions_(static_cast<size_t>(size), Bytes(kRegionBytes)) {
    options.oneshot_max_bytes = 0;
    for (Bytes& region : regions_) spans_.emplace_back(region);
    ranks_ = std::make_unique<Ranks>(size, options, Ranks::kAreaBytes, spans_);
  }

  Ranks& ranks() { return *ranks_; }
  int size() const { return ranks_->size(); }
  Bytes& region(int rank) { return regions_[static_cast<size_t>(rank)]; }
  const DataCounters& counters(int rank) { return ranks_->backend(rank, "shm").counters(); }

 private:
  std::vector<Bytes> regions_;
  std::vector<std::span<std::byte>> spans_;
  std::unique_ptr<Ranks> ranks_;
};

BackendOptions DirectTiles(int64_t bytes) {
  BackendOptions options;
  options.tile_bytes = bytes;
  return options;
}

std::vector<RankData> FloatsOf(int size, const std::vector<int64_t>& counts) {
  std::vector<RankData> data(static_cast<size_t>(size));
  for (size_t r = 0; r < data.size(); ++r) {
    for (size_t i = 0; i < counts.size(); ++i) {
      data[r].inputs.push_back(testing::SmallNumbers(DType::kFloat32, static_cast<size_t>(counts[i]), 31 * r + i));
    }
  }
  return data;
}

// Copies the rank's inputs into its region, `gap` bytes apart, and points the collective there: in place, or with the
// results behind all inputs.
void Place(RankData* data, Bytes* region, size_t begin, size_t gap, bool in_place = true) {
  Collective& c = data->collective;
  c.segments.clear();
  size_t total = 0;
  for (const Bytes& input : data->inputs) total += input.size() + gap;
  size_t at = begin;
  for (const Bytes& input : data->inputs) {
    std::ranges::copy(input, region->data() + at);
    std::byte* const here = region->data() + at;
    c.segments.push_back(
        {here, in_place ? here : here + total, static_cast<int64_t>(input.size() / DTypeBytes(c.dtype))});
    at += input.size() + gap;
  }
}

std::vector<Bytes> Outputs(const RankData& data) {
  std::vector<Bytes> out;
  for (const Segment& segment : data.collective.segments) {
    out.emplace_back(segment.output,
                     segment.output + segment.count * static_cast<int64_t>(DTypeBytes(data.collective.dtype)));
  }
  return out;
}

// Returns the results of the same allreduce through tiles.
std::vector<Bytes> Staged(int size, std::vector<RankData> data) {
  Ranks ranks(size, DirectTiles(4096));
  for (RankData& mine : data) testing::Bind(&mine);
  for (const Status& status : RunInTurn(&ranks, "shm", &data)) EXPECT_TRUE(status.ok()) << status.message();
  return data[0].inputs;
}

void ExpectDirect(Shared* shared, std::vector<RankData>* data, const std::vector<Bytes>& expected) {
  for (const Status& status : RunInTurn(&shared->ranks(), "shm", data)) EXPECT_TRUE(status.ok()) << status.message();
  for (int r = 0; r < shared->size(); ++r) {
    EXPECT_TRUE(Outputs((*data)[static_cast<size_t>(r)]) == expected) << "rank " << r;
    EXPECT_EQ(shared->counters(r).bytes_copied, 0u) << "rank " << r;
  }
}

class ShmDirectTest : public ::testing::TestWithParam<int> {};

TEST_P(ShmDirectTest, CopiesNothingAndGivesTheBitsOfTiles) {
  const int n = GetParam();
  for (const int64_t count : {1, 15, 1000, 100003}) {
    for (const bool in_place : {true, false}) {
      Shared shared(n, DirectTiles(4096));
      std::vector<RankData> data = FloatsOf(n, {count});
      const std::vector<Bytes> expected = Staged(n, data);
      for (int r = 0; r < n; ++r) Place(&data[static_cast<size_t>(r)], &shared.region(r), 4096, 0, in_place);
      ExpectDirect(&shared, &data, expected);
    }
  }
}

TEST_P(ShmDirectTest, FoldsEveryTypeAndOperationAlike) {
  const int n = GetParam();
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16, DType::kFloat64, DType::kInt8, DType::kInt64}) {
    for (const auto op : {wire::ReduceOp::kSum, wire::ReduceOp::kAverage, wire::ReduceOp::kMin, wire::ReduceOp::kMax,
                          wire::ReduceOp::kProduct}) {
      Shared shared(n, DirectTiles(4096));
      std::vector<RankData> data(static_cast<size_t>(n));
      for (size_t r = 0; r < data.size(); ++r) {
        data[r].collective.dtype = dtype;
        data[r].collective.reduce_op = op;
        data[r].collective.postscale = op == wire::ReduceOp::kSum ? 0.5 : 1.0;
        data[r].inputs.push_back(testing::SmallNumbers(dtype, 3001, r));
      }
      const std::vector<Bytes> expected = Staged(n, data);
      for (int r = 0; r < n; ++r) Place(&data[static_cast<size_t>(r)], &shared.region(r), 0, 0);
      ExpectDirect(&shared, &data, expected);
    }
  }
}

TEST_P(ShmDirectTest, TensorsMayBeAdjacentOnSomeRanksAndSeparateOnOthers) {
  const int n = GetParam();
  Shared shared(n, DirectTiles(4096));
  std::vector<RankData> data = FloatsOf(n, {7, 1000, 0, 1, 64, 20000});
  const std::vector<Bytes> expected = Staged(n, data);
  for (int r = 0; r < n; ++r) {
    Place(&data[static_cast<size_t>(r)], &shared.region(r), 64 * static_cast<size_t>(r), r % 2 == 0 ? 0 : 36);
  }
  ExpectDirect(&shared, &data, expected);
}

TEST_P(ShmDirectTest, UsesTilesIfOneRankHasATensorOutsideItsRegion) {
  const int n = GetParam();
  for (const int64_t count : {100, 50000}) {
    for (int own = 0; own < n; ++own) {
      Shared shared(n, DirectTiles(4096));
      std::vector<RankData> data = FloatsOf(n, {count, 33});
      const std::vector<Bytes> expected = Staged(n, data);
      for (int r = 0; r < n; ++r) {
        if (r == own) testing::Bind(&data[static_cast<size_t>(r)]);
        if (r != own) Place(&data[static_cast<size_t>(r)], &shared.region(r), 0, 0);
      }
      for (const Status& status : RunInTurn(&shared.ranks(), "shm", &data)) EXPECT_TRUE(status.ok());
      for (const RankData& mine : data) EXPECT_TRUE(Outputs(mine) == expected);
      EXPECT_GT(shared.counters(0).bytes_copied, 0u);
      // The ranks are still in step: the next operation runs.
      std::vector<RankData> next = FloatsOf(n, {5000});
      const std::vector<Bytes> sums = Staged(n, next);
      for (int r = 0; r < n; ++r) Place(&next[static_cast<size_t>(r)], &shared.region(r), 0, 0);
      for (const Status& status : RunInTurn(&shared.ranks(), "shm", &next)) EXPECT_TRUE(status.ok());
      for (const RankData& mine : next) EXPECT_TRUE(Outputs(mine) == sums);
    }
  }
}

TEST_P(ShmDirectTest, UsesTilesIfThereAreMoreRunsThanATileHolds) {
  const int n = GetParam();
  Shared shared(n, DirectTiles(1024));
  std::vector<RankData> data = FloatsOf(n, std::vector<int64_t>(400, 3));
  const std::vector<Bytes> expected = Staged(n, data);
  for (int r = 0; r < n; ++r) Place(&data[static_cast<size_t>(r)], &shared.region(r), 0, 20);
  for (const Status& status : RunInTurn(&shared.ranks(), "shm", &data)) EXPECT_TRUE(status.ok());
  for (const RankData& mine : data) EXPECT_TRUE(Outputs(mine) == expected);
}

TEST_P(ShmDirectTest, RunsManyOperationsInARow) {
  const int n = GetParam();
  Shared shared(n, DirectTiles(4096));
  for (int step = 0; step < 20; ++step) {
    std::vector<RankData> data = FloatsOf(n, {100 + 17 * step, 5});
    const std::vector<Bytes> expected = Staged(n, data);
    for (int r = 0; r < n; ++r) Place(&data[static_cast<size_t>(r)], &shared.region(r), 8192 * (step % 3), 0);
    ExpectDirect(&shared, &data, expected);
  }
}

TEST_P(ShmDirectTest, StoresEachByteOfTheResultOnceOnEachRank) {
  const int n = GetParam();
  Shared shared(n, DirectTiles(4096));
  std::vector<RankData> data = FloatsOf(n, {48000});
  for (int r = 0; r < n; ++r) Place(&data[static_cast<size_t>(r)], &shared.region(r), 0, 0);
  RunInTurn(&shared.ranks(), "shm", &data);
  uint64_t folded = 0;
  for (int r = 0; r < n; ++r) folded += shared.counters(r).bytes_folded;
  EXPECT_EQ(folded, 4u * 48000 * static_cast<uint64_t>(n));
}

TEST_P(ShmDirectTest, RanksOnThreadsAgree) {
  const int n = GetParam();
  Shared shared(n, DirectTiles(4096));
  std::vector<RankData> data = FloatsOf(n, {70000, 12});
  const std::vector<Bytes> expected = Staged(n, data);
  for (int r = 0; r < n; ++r) Place(&data[static_cast<size_t>(r)], &shared.region(r), 0, 0);
  testing::RunOnThreads(n, [&](int rank) {
    const RankData& mine = data[static_cast<size_t>(rank)];
    for (int i = 0; i < 30; ++i) {
      if (i > 0) {  // restore the inputs: no rank still reads the results of the last step
        size_t at = 0;
        for (const Bytes& input : mine.inputs) {
          std::memcpy(shared.region(rank).data() + at, input.data(), input.size());
          at += input.size();
        }
      }
      auto operation = shared.ranks().backend(rank, "shm").Start(mine.collective);
      EXPECT_TRUE(testing::Finish(operation.get()).ok());
      EXPECT_TRUE(Outputs(mine) == expected) << "rank " << rank << ", step " << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShmDirectTest, ::testing::Values(2, 3, 4, 8));

TEST(ShmDirect, FailsOnAllRanksWhenOneAnnouncesMemoryOutsideItsRegion) {
  const RegionRun kBad[] = {{0, 0, 1 << 30}, {-64, 0, 4000}, {0, int64_t{1} << 62, 4000}, {0, 0, 3999}, {0, 0, 0}};
  for (const RegionRun& bad : kBad) {
    Shared shared(2, DirectTiles(4096));
    std::vector<RankData> data = FloatsOf(2, {1000});
    for (int r = 0; r < 2; ++r) Place(&data[static_cast<size_t>(r)], &shared.region(r), 0, 0);
    auto zero = shared.ranks().backend(0, "shm").Start(data[0].collective);
    auto one = shared.ranks().backend(1, "shm").Start(data[1].collective);
    EXPECT_FALSE(one->Test());  // rank 1 has announced its memory
    ShmPort port(shared.ranks().area(0), 4096);
    port.runs(1, 0).first = bad;
    while (!zero->Test()) {
    }
    EXPECT_EQ(zero->status().code(), StatusCode::kCorrupt) << zero->status().message();
    EXPECT_NE(zero->status().message().find("rank 1"), std::string::npos);
    while (!one->Test()) {
    }
    EXPECT_EQ(one->status().code(), StatusCode::kCorrupt);
  }
}

TEST(ShmDirect, DoesABoundedAmountOfWorkInOneTest) {
  Shared shared(2, DirectTiles(1 << 16));
  std::vector<RankData> data = FloatsOf(2, {1000000});
  for (int r = 0; r < 2; ++r) Place(&data[static_cast<size_t>(r)], &shared.region(r), 0, 0);
  auto zero = shared.ranks().backend(0, "shm").Start(data[0].collective);
  auto one = shared.ranks().backend(1, "shm").Start(data[1].collective);
  uint64_t before = 0;
  for (bool done = false; !done;) {
    done = zero->Test();
    done = one->Test() && done;
    EXPECT_LE(shared.counters(0).bytes_folded - before, uint64_t{1} << 20);
    before = shared.counters(0).bytes_folded;
  }
}

TEST(ShmDirect, NamesTheRanksThatItWaitsFor) {
  Shared shared(3, DirectTiles(4096));
  std::vector<RankData> data = FloatsOf(3, {1000});
  for (int r = 0; r < 3; ++r) Place(&data[static_cast<size_t>(r)], &shared.region(r), 0, 0);
  auto zero = shared.ranks().backend(0, "shm").Start(data[0].collective);
  zero->Test();
  EXPECT_EQ(zero->WaitingFor(), (std::vector<int>{1, 2}));
  auto one = shared.ranks().backend(1, "shm").Start(data[1].collective);
  one->Test();
  zero->Test();
  EXPECT_EQ(zero->WaitingFor(), std::vector<int>{2});
  auto two = shared.ranks().backend(2, "shm").Start(data[2].collective);
  while (!zero->Test()) {
    one->Test();
    two->Test();
  }
  EXPECT_TRUE(zero->status().ok());
}

}  // namespace
}  // namespace horocache::data
