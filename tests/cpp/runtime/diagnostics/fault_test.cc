#include "runtime/diagnostics/fault.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fork.h"

namespace horocache::runtime {
namespace {

TEST(FaultInjector, DoesNothingWithoutFaults) {
  const auto faults = FaultInjector::Parse("", 0);
  ASSERT_TRUE(faults.ok());
  EXPECT_TRUE(faults->At("data").ok());
}

TEST(FaultInjector, ActsOnlyAtItsPlaceRankAndCount) {
  const auto faults = FaultInjector::Parse("start:1:2=error;done=error", 1);
  ASSERT_TRUE(faults.ok());
  EXPECT_TRUE(faults->At("start").ok());
  EXPECT_TRUE(faults->At("submit").ok());
  const Status status = faults->At("start");
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_NE(status.message().find("start"), std::string::npos);
  EXPECT_TRUE(faults->At("start").ok()) << "once";
  EXPECT_FALSE(faults->At("done").ok()) << "without a rank it is every rank's";
  const auto other = FaultInjector::Parse("start:1=error", 0);
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE(other->At("start").ok());
}

TEST(FaultInjector, DropsACollectiveUnderWay) {
  const auto faults = FaultInjector::Parse("data=drop;inline=drop", 0);
  ASSERT_TRUE(faults.ok());
  EXPECT_EQ(faults->At("data").code(), FaultInjector::kDrop);
  EXPECT_EQ(faults->At("inline").code(), FaultInjector::kDrop);
}

TEST(FaultInjector, KillsAndExitsTheProcess) {
  const auto faults = FaultInjector::Parse("data=kill;done=exit", 0);
  ASSERT_TRUE(faults.ok());
  EXPECT_EXIT((void)faults->At("data"), ::testing::KilledBySignal(SIGKILL), "");
  EXPECT_EXIT((void)faults->At("done"), ::testing::ExitedWithCode(3), "");
}

TEST(FaultInjector, ContinuesAfterAStop) {
  const auto faults = FaultInjector::Parse("data=stop", 0);
  ASSERT_TRUE(faults.ok());
  const pid_t child = Fork();
  if (child == 0) _exit(faults->At("data").ok() ? 7 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status)) << status;
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

TEST(FaultInjector, RefusesUnknownFaults) {
  for (const char* text : {"data", "data=explode", "nowhere=kill", "data:x=kill", "data:0:y=kill", "data:0:1:2=kill",
                           "start=drop", "=kill", ";"}) {
    const auto faults = FaultInjector::Parse(text, 0);
    ASSERT_FALSE(faults.ok()) << text;
    EXPECT_EQ(faults.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(faults.status().message().find("HOROCACHE_FAULT"), std::string::npos);
  }
}

}  // namespace
}  // namespace horocache::runtime
