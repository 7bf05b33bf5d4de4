#include "base/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/waker.h"

namespace horocache {
namespace {

// Acts as a program that closes descriptors that it does not know: afterwards, the number refers to the program's file.
void TakeNumber(int fd) {
  const int mine = memfd_create("mine", MFD_CLOEXEC);
  ASSERT_EQ(dup3(mine, fd, O_CLOEXEC), fd);
  close(mine);
}

TEST(UniqueFd, ClosesOnlyItsOwnFile) {
  std::array<int, 2> pair{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  {
    const UniqueFd own(pair[0]);
    EXPECT_TRUE(own.intact());
  }
  EXPECT_EQ(fcntl(pair[0], F_GETFD), -1);
  {
    const UniqueFd taken(pair[1]);
    TakeNumber(pair[1]);
    EXPECT_FALSE(taken.intact());
  }
  EXPECT_NE(fcntl(pair[1], F_GETFD), -1) << "the program's file is open";
  close(pair[1]);
}

TEST(UniqueFd, MovingKeepsTheDescriptor) {
  UniqueFd first(memfd_create("test", MFD_CLOEXEC));
  UniqueFd second(std::move(first));
  EXPECT_FALSE(first.intact());
  first = std::move(second);
  EXPECT_TRUE(first.intact());
}

class WakerTest : public ::testing::Test {
 protected:
  // Starts a thread that sleeps on the waker for up to an hour, calls lose_, and wakes the thread.
  void SleepAndWake() {
    std::thread sleeper([this] {
      std::vector<pollfd> polled;
      while (!stop_.load()) waker_.Sleep(&polled, 3600 * kNsPerS);
    });
    if (HasFatalFailure()) return;
    usleep(20'000);
    lose_();
    usleep(20'000);
    const int64_t began_ns = NowNs();
    stop_.store(true);
    waker_.Wake();
    sleeper.join();
    EXPECT_LT(NowNs() - began_ns, 30 * kNsPerS);
  }

  Waker waker_;
  std::function<void()> lose_ = [] {};
  std::atomic<bool> stop_{false};
};

TEST_F(WakerTest, WakesAThreadThatPolls) { SleepAndWake(); }

TEST_F(WakerTest, WakesAThreadWhoseDescriptorsTheProgramHasReopened) {
  const int number = waker_.number();
  lose_ = [number] {
    for (const int fd : {number, number + 1}) TakeNumber(fd);
  };
  SleepAndWake();
  EXPECT_FALSE(waker_.intact());
  for (const int fd : {number, number + 1}) {
    EXPECT_EQ(lseek(fd, 0, SEEK_END), 0) << "something was written into the program's file";
    close(fd);
  }
}

TEST_F(WakerTest, AWakeWithoutASleeperEndsTheNextSleep) {
  waker_.Wake();
  std::vector<pollfd> polled;
  waker_.Sleep(&polled, 3600 * kNsPerS);
  const int64_t began_ns = NowNs();
  waker_.Sleep(&polled, 20 * kNsPerMs);
  EXPECT_GE(NowNs() - began_ns, 10 * kNsPerMs);
}

TEST_F(WakerTest, ReturnsTheReadyDescriptor) {
  std::array<int, 2> pair{};
  ASSERT_EQ(pipe2(pair.data(), O_CLOEXEC), 0);
  ASSERT_EQ(write(pair[1], "x", 1), 1);
  std::vector<pollfd> polled = {{pair[0], POLLIN, 0}, {-1, POLLIN, 0}};
  waker_.Sleep(&polled, 3600 * kNsPerS);
  ASSERT_EQ(polled.size(), 2u);
  EXPECT_NE(polled[0].revents, 0);
  close(pair[0]);
  close(pair[1]);
}

}  // namespace
}  // namespace horocache
