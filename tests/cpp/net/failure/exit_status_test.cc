// The texts for processes that have ended, and the field of /proc that they come from.
#include "net/failure/exit_status.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "base/fork.h"
#include "base/unique_fd.h"

namespace horocache::net {
namespace {

// A process that has ended and that nothing has reaped.
class Zombie {
 public:
  Zombie(int code_or_signal, bool killed) : pid_(Fork()) {
    if (pid_ == 0 && killed) {
      while (true) pause();
    }
    if (pid_ == 0) _exit(code_or_signal);
    pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
    if (killed) kill(pid_, code_or_signal);
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }
  ~Zombie() { Reap(); }
  Zombie(const Zombie&) = delete;
  Zombie& operator=(const Zombie&) = delete;
  void Reap() {
    if (!std::exchange(reaped_, true)) waitpid(pid_, nullptr, 0);
  }
  std::string End() const { return DescribeEnd(pidfd_.get(), pid_); }

 private:
  const pid_t pid_;
  UniqueFd pidfd_;
  bool reaped_ = false;
};

TEST(ExitStatusTest, AProcessThatNothingHasReapedShowsItsStatus) {
  EXPECT_EQ(Zombie(SIGKILL, true).End(), "was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(Zombie(3, false).End(), "exited with code 3 without shutdown()");
}

TEST(ExitStatusTest, AReapedProcessShowsItsStatusIfTheKernelKeepsIt) {
  Zombie zombie(SIGKILL, true);
  zombie.Reap();
  const std::string end = zombie.End();
  EXPECT_TRUE(end == "was killed by signal 9 (SIGKILL)" || end == "exited without shutdown()") << end;
}

TEST(ExitStatusTest, OnlyAProcessThatHasEndedHasOne) {
  EXPECT_EQ(ExitStatusIn("12 (a) Z) Z 1 12 0 9\n"), 9);
  EXPECT_EQ(ExitStatusIn("12 (python) X 1 12 0 768"), 768) << "its parent is reaping it";
  EXPECT_EQ(ExitStatusIn("12 (Z) R 1 12 0 9"), std::nullopt);
  EXPECT_EQ(ExitStatusIn("12 (a"), std::nullopt);
  EXPECT_EQ(ExitStatusIn(""), std::nullopt);
  EXPECT_EQ(ExitStatusIn("12 (a)"), std::nullopt);
}

}  // namespace
}  // namespace horocache::net
