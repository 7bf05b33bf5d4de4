#include "runtime/diagnostics/busy_time.h"

#include <gtest/gtest.h>

namespace horocache::runtime {
namespace {

TEST(BusyTime, IsZeroBeforeALaneHasWork) { EXPECT_EQ(BusyTime().TotalNs(), 0); }

TEST(BusyTime, AddsIntervalsUp) {
  BusyTime busy;
  busy.Begin(100);
  busy.End(130);
  busy.Begin(1000);
  busy.End(1005);
  EXPECT_EQ(busy.TotalNs(), 35);
}

TEST(BusyTime, CountsLanesThatAreBusyAtTheSameTimeOnce) {
  BusyTime busy;
  busy.Begin(100);
  busy.Begin(110);
  busy.End(120);
  busy.Begin(125);
  busy.End(150);
  busy.End(160);
  EXPECT_EQ(busy.TotalNs(), 60);
}

TEST(BusyTime, AnOpenIntervalGrows) {
  BusyTime busy;
  busy.Begin(100);
  busy.End(130);
  const int64_t began_ns = NowNs();
  busy.Begin(began_ns);
  const int64_t early_ns = busy.TotalNs();
  EXPECT_GE(early_ns, 30);
  while (NowNs() == began_ns) {
  }
  EXPECT_GE(busy.TotalNs(), early_ns);
  busy.End(began_ns + 12);
  EXPECT_EQ(busy.TotalNs(), 42);
}

}  // namespace
}  // namespace horocache::runtime
