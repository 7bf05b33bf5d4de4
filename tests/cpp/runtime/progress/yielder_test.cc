#include "runtime/progress/yielder.h"

#include <gtest/gtest.h>

namespace horocache::runtime {
namespace {

constexpr int64_t kSlice = 3 * kNsPerMs;

TEST(Yielder, PaysWhileYieldsAreShort) {
  Yielder yielder;
  int64_t now_ns = kNsPerS;
  for (int i = 0; i < 100; ++i, now_ns += Yielder::kLongNs - 1) {
    EXPECT_TRUE(yielder.Pays(now_ns));
    yielder.Note(now_ns, now_ns + Yielder::kLongNs - 1);
  }
  EXPECT_TRUE(yielder.Pays(now_ns));
}

TEST(Yielder, TriesLessOftenWhileAnotherProcessUsesTheCore) {
  Yielder yielder;
  int64_t now_ns = kNsPerS;
  for (int64_t pause_ns = Yielder::kShortestPauseNs; pause_ns <= Yielder::kLongestPauseNs; pause_ns *= 2) {
    ASSERT_TRUE(yielder.Pays(now_ns));
    yielder.Note(now_ns, now_ns + kSlice);
    now_ns += kSlice + pause_ns;
    EXPECT_FALSE(yielder.Pays(now_ns - 1));
  }
  yielder.Note(now_ns, now_ns + kSlice);
  EXPECT_TRUE(yielder.Pays(now_ns + kSlice + Yielder::kLongestPauseNs));
}

TEST(Yielder, StartsAgainAfterAShortYield) {
  Yielder yielder;
  for (int i = 0; i < 5; ++i) yielder.Note(0, kSlice);
  yielder.Note(kNsPerS, kNsPerS + kNsPerUs);
  yielder.Note(2 * kNsPerS, 2 * kNsPerS + kSlice);
  EXPECT_FALSE(yielder.Pays(2 * kNsPerS + kSlice + Yielder::kShortestPauseNs - 1));
  EXPECT_TRUE(yielder.Pays(2 * kNsPerS + kSlice + Yielder::kShortestPauseNs));
}

}  // namespace
}  // namespace horocache::runtime
