#include "runtime/diagnostics/user_time.h"

#include <gtest/gtest.h>

namespace horocache::runtime {
namespace {

TEST(UserTime, AProgramThatUsesATwentiethOfACoreComputes) {
  UserTime time;
  time.Sample(10 * kNsPerS, 5 * kNsPerS);
  EXPECT_FALSE(time.computes()) << "nothing is known yet";
  time.Sample(11 * kNsPerS, 5 * kNsPerS + 49 * kNsPerMs);
  EXPECT_FALSE(time.computes());
  time.Sample(12 * kNsPerS, 5 * kNsPerS + 99 * kNsPerMs);
  EXPECT_TRUE(time.computes());
  // Samples in between change nothing.
  time.Sample(12 * kNsPerS + 1, 5 * kNsPerS + 99 * kNsPerMs);
  EXPECT_TRUE(time.computes());
  time.Sample(14 * kNsPerS, 5 * kNsPerS + 100 * kNsPerMs);
  EXPECT_FALSE(time.computes());
}

TEST(UserTime, TheProcessorTimeOfTheProcessGrowsWhileItWorks) {
  const int64_t before_ns = UserTime::OfProcessNs();
  while (UserTime::OfProcessNs() < before_ns + kNsPerMs) {
  }
  SUCCEED();
}

}  // namespace
}  // namespace horocache::runtime
