// Windows on one host and between hosts, over each transport.
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "moe/windows_of_ranks.h"

namespace horocache::moe {
namespace {

class AnyWindow : public testing::TestWithParam<Between> {};

TEST_P(AnyWindow, EveryBatchComesBackFromItsHostInManyRounds) {
  for (const std::vector<int>& machines : {std::vector{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 2, 3}}) {
    Windows windows({true, true, false, true}, 2, 8, machines, GetParam());
    windows.Run([&](int rank) {
      std::mt19937 random(static_cast<unsigned>(rank));
      for (int i = 0; i < 300; ++i) {
        std::vector<int32_t> rows(4);
        size_t some = 0;
        for (int host : {0, 1, 3}) some += (rows[static_cast<size_t>(host)] = static_cast<int32_t>(random() % 9)) > 0;
        const Round round = RunRound(&windows[rank], Lossless(rows));
        ASSERT_TRUE(round.status.ok()) << round.status.message();
        ASSERT_EQ(round.taken.size(), some);
      }
    });
    for (int rank = 0; rank < 4; ++rank) {
      const ExchangeCounters& counters = windows.counters(rank);
      EXPECT_EQ(counters.rounds, 300u);
      for (Outcome drop : {Outcome::kOwnTimeout, Outcome::kHostLeft, Outcome::kRingFull, Outcome::kLostRank})
        EXPECT_EQ(counters.rows[static_cast<size_t>(drop)], 0u);
    }
  }
}

TEST_P(AnyWindow, M12CellsNeverMixRoundsOrRanksWithEarlyExits) {
  for (uint32_t depth : {1u, 2u, 3u}) {
    Windows windows({true, true, true}, depth, 4, {0, 1, 1}, GetParam());
    windows.Run([&](int rank) {
      std::mt19937 random(static_cast<unsigned>(rank) + depth * 100);
      for (int i = 0; i < (GetParam() == Between::kNone ? 3'000 : 1'000); ++i) {
        Plan plan{.rows = {}, .epsilon = static_cast<int>(random() % 3), .tau_ns = 0, .wait_for_room = false};
        for (int host = 0; host < 3; ++host) plan.rows.push_back(static_cast<int32_t>(random() % 5));
        const auto nap = random() % 50 == 0 ? std::chrono::microseconds(random() % 200) : std::chrono::microseconds(0);
        const Round round = RunRound(&windows[rank], plan, 0, [nap] {
          if (nap.count() > 0) std::this_thread::sleep_for(nap);
        });
        ASSERT_TRUE(round.status.ok()) << round.status.message();
        int64_t rows = 0, settled = 0;
        for (int host = 0; host < 3; ++host) {
          const Outcome outcome = windows[rank].exchange().outcome(host);
          rows += plan.rows[static_cast<size_t>(host)] > 0;
          settled += outcome != Outcome::kNone && outcome != Outcome::kWaiting;
        }
        ASSERT_EQ(rows, settled) << "rank " << rank << " round " << i;
      }
      // No rank waits for one that is done.
      windows[rank].Close();
    });
  }
}

TEST_P(AnyWindow, EachOfManyFailuresInARowReachesEveryRank) {
  Windows windows({true, true, true}, 2, 4, {0, 1, 1}, GetParam());
  windows.Run([&](int rank) {
    for (int i = 0; i < 100; ++i) {
      const std::string text = "rank " + std::to_string(i % 3) + " fails " + std::to_string(i);
      if (rank == i % 3) {
        ASSERT_TRUE(windows[rank].Enter(Lossless({1, 1, 1}), 0, kRowBytes, nullptr).ok());
        ASSERT_TRUE(windows[rank].Next(nullptr).ok());
        windows[rank].Fail({StatusCode::kAborted, text});
      } else {
        ASSERT_EQ(RunRound(&windows[rank], Lossless({1, 1, 1})).status.message(), text);
      }
    }
  });
}

TEST_P(AnyWindow, RanksInDifferentCallsGetAnErrorThatNamesBoth) {
  Windows windows({true, true}, 2, 4, {0, 1}, GetParam());
  windows.Run([&](int rank) {
    windows[rank].NameTag(1, "layer 'a'");
    windows[rank].NameTag(2, "layer 'b'");
    const Status status = RunRound(&windows[rank], Lossless({1, 1}), rank == 0 ? 1 : 2).status;
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    for (const char* part : {"rank 0", "rank 1", "layer 'a'", "layer 'b'", "same order"})
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  });
}

INSTANTIATE_TEST_SUITE_P(Ways, AnyWindow, testing::Values(Between::kNone, Between::kLink, Between::kRma),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace horocache::moe
