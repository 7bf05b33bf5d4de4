// Windows between hosts, over each transport.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "moe/windows_of_ranks.h"

namespace horocache::moe {
namespace {

class RemoteWindow : public testing::TestWithParam<Between> {};

TEST_P(RemoteWindow, ABatchThatIsLargerThanItsCellIsAnErrorOnEveryRank) {
  Windows windows({true, true, true}, 2, 4, {0, 0, 1}, GetParam());
  windows.Run([&](int rank) {
    windows[rank].NameTag(0, "layer 'a'");
    const Status status = RunRound(&windows[rank], Lossless({1, rank == 2 ? 1 : 5, rank == 1 ? 5 : 1})).status;
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    for (const char* part :
         {"rank 1 and rank 2 are on different hosts", "5 tokens", "layer 'a'", "room for 4", "max_tokens"})
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  });
  // Ranks of one host spill it.
  windows.Run(
      [&](int rank) { EXPECT_TRUE(RunRound(&windows[rank], Lossless({1, rank == 2 ? 1 : 5, 1})).status.ok()); });
}

TEST_P(RemoteWindow, ALostRankDropsItsTokensAndNoOthersOrIsAnErrorWithMpiWindows) {
  Windows windows({true, true, true}, 2, 4, {0, 1, 2}, GetParam());
  windows.Run([&](int rank) {
    if (rank == 2) return;
    windows[rank].Lose(2);
    const Round round = RunRound(&windows[rank], Lossless({1, 1, 1}));
    if (GetParam() == Between::kRma) {
      EXPECT_EQ(round.status.code(), StatusCode::kPeerLost);
      EXPECT_NE(round.status.message().find("rank 2 was lost"), std::string::npos) << round.status.message();
      return;
    }
    EXPECT_TRUE(round.status.ok());
    EXPECT_EQ(windows[rank].exchange().outcome(2), Outcome::kLostRank);
    EXPECT_EQ(windows[rank].exchange().outcome(1 - rank), Outcome::kDelivered);
    EXPECT_EQ(round.taken.size(), 2u);
  });
}

TEST_P(RemoteWindow, ARankThatIsLateGetsTheTokensOfARankThatIsAheadAndHasClosed) {
  Windows windows({true, true}, 2, 4, {0, 1}, GetParam());
  Plan plan{.rows = {0, 3}, .epsilon = 0, .tau_ns = 0, .wait_for_room = false};
  ASSERT_TRUE(RunRound(&windows[0], plan).status.ok());
  EXPECT_EQ(windows[0].exchange().outcome(1), Outcome::kOwnTimeout);
  windows[0].Close();
  const Round round = RunRound(&windows[1], Lossless({1, 1}));  // its tokens for rank 0 are lost
  EXPECT_TRUE(round.status.ok()) << round.status.message();
  EXPECT_EQ(windows[1].exchange().outcome(1), Outcome::kDelivered);
  EXPECT_NE(windows[1].exchange().outcome(0), Outcome::kDelivered);
}

TEST_P(RemoteWindow, ABlockIsForgottenWhenAllOthersHaveClosed) {
  Windows windows({true, true, false}, 2, 4, {0, 0, 1}, GetParam());
  windows[1].Close();
  windows[2].Close();
  const int64_t until_ns = NowNs() + 20 * kNsPerS;
  while (!windows[0].IsForgotten() && NowNs() < until_ns) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(windows[0].IsForgotten());
  EXPECT_TRUE(windows[0].HasClosed(2));
}

INSTANTIATE_TEST_SUITE_P(Ways, RemoteWindow, testing::Values(Between::kLink, Between::kRma),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace horocache::moe
