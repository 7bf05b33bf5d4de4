#include "base/thread.h"

#include <gtest/gtest.h>

#include <atomic>

namespace horocache {
namespace {

TEST(ThreadCpuTime, IsReadFromAnotherThreadWhileTheThreadRunsAndAfterItsEnd) {
  ThreadCpuTime time;
  EXPECT_EQ(time.Ns(), 0);
  std::atomic<bool> began{false}, stop{false};
  NamedThread thread("busy", [&] {
    time.Begin();
    began = true;
    while (!stop) {
    }
    time.End();
  });
  while (!began) {
  }
  const int64_t early_ns = time.Ns();
  while (time.Ns() <= early_ns) {
  }
  stop = true;
  thread.Join();
  const int64_t at_end_ns = time.Ns();
  EXPECT_GT(at_end_ns, early_ns);
  EXPECT_EQ(time.Ns(), at_end_ns);
}

}  // namespace
}  // namespace horocache
