#include "runtime/diagnostics/pass_watch.h"

#include <gtest/gtest.h>

#include <vector>

namespace horocache::runtime {
namespace {

using Verdict = PassWatch::Verdict;

constexpr int64_t kLateNs = 2 * kNsPerS, kStuckNs = 7 * kNsPerS;

TEST(PassWatchTest, SaysOnceThatAPassIsLateAndThenThatItIsStuck) {
  PassWatch watch;
  std::vector<Verdict> verdicts;
  for (int look = 0; look < 9; ++look) verdicts.push_back(watch.Look(5, kLateNs, kStuckNs));
  EXPECT_EQ(verdicts,
            (std::vector<Verdict>{Verdict::kMoves, Verdict::kMoves, Verdict::kLate, Verdict::kMoves, Verdict::kMoves,
                                  Verdict::kMoves, Verdict::kMoves, Verdict::kStuck, Verdict::kStuck}));
  EXPECT_EQ(watch.lasts_ns(), 8 * kNsPerS);
  EXPECT_EQ(watch.Look(7, kLateNs, kStuckNs), Verdict::kMoves) << "another pass";
  EXPECT_EQ(watch.lasts_ns(), 0);
}

TEST(PassWatchTest, BetweenPassesTheThreadMaySleepForEver) {
  PassWatch watch;
  for (int look = 0; look < 100; ++look) EXPECT_EQ(watch.Look(6, kLateNs, kStuckNs), Verdict::kMoves);
}

TEST(PassWatchTest, PassesThatGoOnAreFineHoweverMany) {
  PassWatch watch;
  for (uint32_t look = 0; look < 100; ++look) EXPECT_EQ(watch.Look(2 * look + 1, kLateNs, kStuckNs), Verdict::kMoves);
}

TEST(PassWatchTest, AShortLimitLeavesTimeForABusyMachineAndZeroIsNone) {
  PassWatch short_limit, no_limit;
  for (int look = 0; look <= 5; ++look)
    EXPECT_EQ(short_limit.Look(1, 100 * kNsPerS, 1) == Verdict::kStuck, look == 5) << look;
  for (int look = 0; look < 1000; ++look) EXPECT_EQ(no_limit.Look(1, 5000 * kNsPerS, 0), Verdict::kMoves);
}

}  // namespace
}  // namespace horocache::runtime
