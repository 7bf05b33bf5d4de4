// The shm backend on more than 2^31 elements.
#include <gtest/gtest.h>

#include "data/ranks.h"

namespace horocache::data {
namespace {

using testing::RankData;
using testing::Ranks;
using testing::RunInTurn;
using wire::Op;

TEST(ShmBig, BroadcastsMoreThanTwoToThe31ElementsInSegments) {
  Ranks ranks(2, {.tile_bytes = 32 << 10, .oneshot_max_bytes = 0});
  std::vector<RankData> data(2);
  for (size_t r = 0; r < 2; ++r) {
    data[r].collective.op = Op::kBroadcast;
    data[r].collective.root = 0;
    data[r].collective.dtype = DType::kInt8;
    data[r].inputs.emplace_back(size_t{1} << 20, r == 0 ? std::byte{3} : std::byte{0});
    data[r].inputs.emplace_back(9, r == 0 ? std::byte{4} : std::byte{0});
    testing::Bind(&data[r]);
    // The same 1 MiB of memory, repeated, stands for 2 GiB; only the last segment lies beyond 2^31.
    auto& segments = data[r].collective.segments;
    segments.insert(segments.begin(), 2048, segments[0]);
  }
  for (const Status& status : RunInTurn(&ranks, "shm", &data, 1 << 30)) ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(data[1].inputs == data[0].inputs);
}

// 2^31 + 7 bytes on each of two ranks: needs 4 GiB and some seconds. Run it with --gtest_also_run_disabled_tests.
TEST(ShmBig, DISABLED_ReducesAndGathersMoreThanTwoToThe31Elements) {
  Ranks ranks(2, {.tile_bytes = 256 << 10, .oneshot_max_bytes = 0}, 4 << 20);
  const size_t count = (size_t{1} << 31) + 7;
  std::vector<RankData> data(2);
  for (RankData& mine : data) {
    mine.collective.dtype = DType::kInt8;
    mine.inputs.emplace_back(count, std::byte{3});
    mine.inputs[0].back() = std::byte{5};
  }
  for (RankData& mine : data) testing::Bind(&mine);
  for (const Status& status : RunInTurn(&ranks, "shm", &data, 1 << 30)) ASSERT_TRUE(status.ok());
  for (const RankData& mine : data) {
    EXPECT_EQ(mine.inputs[0][0], std::byte{6});
    EXPECT_EQ(mine.inputs[0][count / 2], std::byte{6});
    EXPECT_EQ(mine.inputs[0][count - 2], std::byte{6});
    EXPECT_EQ(mine.inputs[0][count - 1], std::byte{10});
  }
  std::vector<RankData> gathered(2);
  data.clear();
  for (size_t r = 0; r < 2; ++r) {
    gathered[r].collective.op = Op::kGather;
    gathered[r].collective.root = 0;
    gathered[r].collective.dtype = DType::kInt8;
    gathered[r].inputs.emplace_back(r == 0 ? 1 : count, std::byte{7});
    testing::BindVariable(&gathered[r]);
  }
  for (const Status& status : RunInTurn(&ranks, "shm", &gathered, 1 << 30)) ASSERT_TRUE(status.ok());
  EXPECT_EQ(gathered[0].result.size(), count + 1);
  EXPECT_EQ(gathered[0].result.back(), std::byte{7});
}

}  // namespace
}  // namespace horocache::data
