#include "moe/window.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/clock.h"
#include "moe/windows_of_ranks.h"

namespace horocache::moe {
namespace {

TEST(Window, ABatchWaitsForRoomAndIsNotLost) {
  Windows windows({true, false}, 1, 4);
  windows.Run([&](int rank) {
    for (int i = 0; i < 200; ++i) {
      // Rank 1 waits for nothing in most rounds, and comes up to many rounds ahead.
      const Round round = RunRound(&windows[rank], Lossless({rank == 1 && i % 20 == 19 ? 4 : 0, 0}));
      ASSERT_TRUE(round.status.ok());
      ASSERT_EQ(round.taken.size(), rank == 1 && i % 20 == 19 ? 1u : 0u);
    }
  });
}

TEST(Window, ABatchWithoutRoomIsDroppedAtOnceIfTheRankDoesNotWait) {
  Windows windows({true, false}, 2, 4);
  Plan plan = Lossless({1, 0});
  plan.wait_for_room = false;
  plan.epsilon = 0;
  plan.tau_ns = 0;
  std::vector<Outcome> outcomes;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(RunRound(&windows[1], plan).status.ok());
    outcomes.push_back(windows[1].exchange().outcome(0));
  }
  EXPECT_EQ(outcomes,
            (std::vector{Outcome::kOwnTimeout, Outcome::kOwnTimeout, Outcome::kRingFull, Outcome::kRingFull}));
  // The host finds its rounds left, and serves none of them.
  for (int i = 0; i < 4; ++i) {
    const Round round = RunRound(&windows[0], Lossless({0, 0}));
    EXPECT_TRUE(round.status.ok() && round.served.empty());
  }
}

TEST(Window, AFailureReachesEveryRankInTheRound) {
  Windows windows({true, true, true}, 2, 4);
  std::vector<Status> results(3);
  windows.Run([&](int rank) {
    if (rank == 1) {
      ASSERT_TRUE(windows[1].Enter(Lossless({1, 1, 1}), 0, kRowBytes, nullptr).ok());
      windows[1].Fail({StatusCode::kAborted, "rank 1: the expert raised"});
    } else {
      results[static_cast<size_t>(rank)] = RunRound(&windows[rank], Lossless({1, 1, 1})).status;
    }
  });
  for (int rank : {0, 2}) {
    EXPECT_EQ(results[static_cast<size_t>(rank)].code(), StatusCode::kAborted);
    EXPECT_EQ(results[static_cast<size_t>(rank)].message(), "rank 1: the expert raised");
  }
  windows.Run([&](int rank) { EXPECT_TRUE(RunRound(&windows[rank], Lossless({1, 1, 1})).status.ok()); });
}

TEST(Window, TheFailureOfARankThatHasLeftTheJobReachesTheOthers) {
  Windows windows({true, true}, 2, 4);
  ASSERT_TRUE(windows[1].Enter(Lossless({1, 1}), 0, kRowBytes, nullptr).ok());
  windows[1].Fail({StatusCode::kAborted, "rank 1: no gate"});
  windows[1].Close();
  windows.FreeBlock(1);
  EXPECT_EQ(RunRound(&windows[0], Lossless({1, 1})).status.message(), "rank 1: no gate");
}

TEST(Window, AfterAFailureTheWaitForALateRankHasALimit) {
  Windows windows({true, true}, 2, 4);
  ASSERT_TRUE(windows[0].Enter(Lossless({1, 1}), 0, kRowBytes, nullptr).ok());
  windows[0].Fail({StatusCode::kAborted, "rank 0: no gate"});
  Plan plan = Lossless({1, 1});
  plan.limit_ns = kNsPerMs;
  const Status late = windows[0].Enter(plan, 0, kRowBytes, nullptr);
  EXPECT_EQ(late.code(), StatusCode::kStall);
  EXPECT_NE(late.message().find("rank 1 has not come to round 1"), std::string::npos) << late.message();
  // The late rank gets the error of its round, and then both go on.
  EXPECT_EQ(RunRound(&windows[1], Lossless({1, 1})).status.message(), "rank 0: no gate");
  windows.Run([&](int rank) { EXPECT_TRUE(RunRound(&windows[rank], Lossless({1, 1})).status.ok()); });
}

TEST(Window, ALostRankDropsItsTokensAndNoOthers) {
  Windows windows({true, true, true}, 2, 4);
  windows.Run([&](int rank) {
    if (rank == 2) return;
    windows[rank].Lose(2);
    const Round round = RunRound(&windows[rank], Lossless({1, 1, 1}));
    EXPECT_TRUE(round.status.ok());
    EXPECT_EQ(windows[rank].exchange().outcome(2), Outcome::kLostRank);
    EXPECT_EQ(windows[rank].exchange().outcome(1 - rank), Outcome::kDelivered);
    EXPECT_EQ(round.taken.size(), 2u);
  });
}

TEST(Window, ACheckEndsTheRoundWithItsError) {
  Windows windows({true, true}, 2, 4);
  ASSERT_TRUE(windows[0].Enter(Lossless({0, 1}), 0, kRowBytes, nullptr).ok());
  StatusOr<Window::Step> step = windows[0].Next(nullptr);
  ASSERT_TRUE(step.ok() && step->act == Act::kSend);
  step = windows[0].Next([] { return Status(StatusCode::kAborted, "interrupted"); });
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.status().message(), "interrupted");
  EXPECT_EQ(windows[0].exchange().outcome(1), Outcome::kOwnTimeout);
  EXPECT_GT(windows[0].waited_ns(1), 0);
}

TEST(Window, WrongPlansAreRefusedBeforeTheRound) {
  Windows windows({true, false}, 2, 4);
  EXPECT_EQ(windows[0].Enter(Lossless({0, 1}), 0, kRowBytes, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(windows[0].Enter(Lossless({-1, 0}), 0, kRowBytes, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(windows[0].exchange().round(), 0u);
  ASSERT_TRUE(windows[0].Enter(Lossless({4, 0}), 0, kRowBytes, nullptr).ok());
  EXPECT_EQ(windows[0].Enter(Lossless({4, 0}), 0, kRowBytes, nullptr).code(), StatusCode::kInvalidArgument);
}

TEST(Window, BatchesThatAreLargerThanTheirCellsAreSpilledAndTheMemoryIsReused) {
  Windows windows({true, true, true}, 2, 4);
  windows.Run([&](int rank) {
    for (int i = 0; i < 200; ++i) {
      const Round round = RunRound(&windows[rank], Lossless({i % 7, 100 + rank, i % 2 == 0 ? 1000 : 2}));
      ASSERT_TRUE(round.status.ok()) << round.status.message();
      ASSERT_EQ(round.taken.size(), i % 7 == 0 ? 2u : 3u);
    }
  });
  // Of each rank: pieces for 100 rows, for 1000, and for the two rounds that may be under way at once.
  EXPECT_LE(windows.spilled(), 3 * 16);
}

TEST(Window, M12SpilledBatchesNeverMixRoundsOrRanksWithEarlyExits) {
  Windows windows({true, true, true}, 2, 1);
  windows.Run([&](int rank) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int i = 0; i < 2'000; ++i) {
      Plan plan{.rows = {}, .epsilon = static_cast<int>(random() % 3), .tau_ns = 0, .wait_for_room = false};
      for (int host = 0; host < 3; ++host) plan.rows.push_back(static_cast<int32_t>(random() % 20));
      ASSERT_TRUE(RunRound(&windows[rank], plan).status.ok());
    }
    windows[rank].Close();
  });
}

TEST(Window, ABatchWithoutMemoryIsAnErrorOnEveryRank) {
  Windows windows({true, true}, 2, 4);
  windows.LimitSpills(0);
  windows.Run([&](int rank) {
    windows[rank].NameTag(0, "layer 'a'");
    const Status status = RunRound(&windows[rank], Lossless({1, rank == 0 ? 100 : 1})).status;
    EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
    EXPECT_NE(status.message().find("rank 0 has no shared memory for a batch of 100 tokens"), std::string::npos)
        << status.message();
  });
  windows.Run([&](int rank) { EXPECT_TRUE(RunRound(&windows[rank], Lossless({1, 1})).status.ok()); });
}

TEST(Window, ABlockIsForgottenWhenAllOthersHaveClosed) {
  Windows windows({true, true, false}, 2, 4);
  EXPECT_FALSE(windows[0].IsForgotten());
  windows[1].Close();
  EXPECT_FALSE(windows[0].IsForgotten());
  windows[2].Close();
  EXPECT_TRUE(windows[0].IsForgotten());
  EXPECT_TRUE(windows[0].HasClosed(1));
}

}  // namespace
}  // namespace horocache::moe
