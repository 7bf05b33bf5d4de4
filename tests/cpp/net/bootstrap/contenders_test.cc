#include "net/bootstrap/contenders.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fork.h"
#include "net/bootstrap/startup_testing.h"

namespace horocache::net {
namespace {

using testing::Child;
using testing::Config;
using testing::TestDirectory;

// A claim that only this process uses: other processes may run the same tests at the same time.
const std::vector<std::string> kClaim = {"MASTER_ADDR=10.1.2.3", "MASTER_PORT=" + std::to_string(getpid())};

std::vector<std::string> ClaimOf(int rank) {
  return {kClaim[0], kClaim[1], "RANK=" + std::to_string(rank), "PATH=/usr/bin:/bin"};
}

// A running program; the destructor kills and reaps it.
class Program {
 public:
  Program(std::vector<std::string> command, std::vector<std::string> environment) {
    const auto pointers = [](std::vector<std::string>* texts) {
      std::vector<char*> out;
      for (std::string& text : *texts) out.push_back(text.data());
      out.push_back(nullptr);
      return out;
    };
    pid_ = Fork();
    if (pid_ == 0) {
      setpgid(0, 0);
      execve(command[0].c_str(), pointers(&command).data(), pointers(&environment).data());
      _exit(127);
    }
    setpgid(pid_, pid_);
    // Wait until /proc shows the new command line.
    for (int i = 0; i < 10'000; ++i) {
      std::ifstream file("/proc/" + std::to_string(pid_) + "/cmdline");
      std::string first;
      std::getline(file, first, '\0');
      if (first == command[0]) return;
      usleep(500);
    }
    ADD_FAILURE() << command[0] << " did not start";
  }
  Program(Program&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  ~Program() {
    if (pid_ < 0) return;
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  int pid() const { return pid_; }

 private:
  int pid_;
};

Program RankProgram(int rank, const std::string& argument = "60") { return {{"/bin/sleep", argument}, ClaimOf(rank)}; }

// A shell that starts a rank and waits for it. `environment` is the environment of the shell.
Program Wrapped(int rank, const std::string& argument, const std::vector<std::string>& environment) {
  return {{"/bin/sh", "-c",
           "RANK=" + std::to_string(rank) + " " + kClaim[0] + " " + kClaim[1] + " /bin/sleep " + argument + "; true"},
          environment};
}

int OnlyChildOf(int pid) {
  for (int i = 0; i < 10'000; ++i) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
    int child = 0;
    std::string command;
    if (file >> child) {
      std::ifstream line("/proc/" + std::to_string(child) + "/cmdline");
      std::getline(line, command, '\0');
      if (command == "/bin/sleep") return child;
    }
    usleep(500);
  }
  ADD_FAILURE() << "no child of " << pid;
  return 0;
}

std::vector<int> Pids(const std::vector<Contender>& claimants) {
  std::vector<int> pids;
  for (const Contender& one : claimants) pids.push_back(one.pid);
  return pids;
}

TEST(Contenders, AProcessWithTheClaimAndTheProgramOfARankIsAContender) {
  const Program zero = RankProgram(0), one = RankProgram(1), late = RankProgram(1);
  const std::vector<Contender> rivals = FindContenders(kClaim, {zero.pid(), one.pid()});
  ASSERT_EQ(Pids(rivals), std::vector<int>{late.pid()});
  EXPECT_EQ(rivals[0].rank, 1);
  EXPECT_EQ(rivals[0].command, "'/bin/sleep 60'");
}

TEST(Contenders, AProcessWithAnotherProgramOrClaimIsNoContender) {
  const Program zero = RankProgram(0), other_program = RankProgram(0, "61");
  const Program other_port({"/bin/sleep", "60"}, {kClaim[0], "MASTER_PORT=78", "RANK=0"});
  const Program no_rank({"/bin/sleep", "60"}, {kClaim[0], kClaim[1]});
  EXPECT_TRUE(FindContenders(kClaim, {zero.pid()}).empty());
}

TEST(Contenders, AProcessThatARankHasStartedIsNoContender) {
  const Program shell({"/bin/sh", "-c", "/bin/sleep 60; true"}, ClaimOf(0));
  const int child = OnlyChildOf(shell.pid());
  const Program twin({"/bin/sh", "-c", "/bin/sleep 60; true"}, ClaimOf(0));
  const int its_child = OnlyChildOf(twin.pid());
  // If the child is the rank, the shell is its wrapper. If the shell is the rank, the child has inherited the claim.
  EXPECT_EQ(Pids(FindContenders(kClaim, {child})), std::vector<int>{its_child});
  EXPECT_EQ(Pids(FindContenders(kClaim, {shell.pid()})), std::vector<int>{twin.pid()});
}

TEST(Contenders, RanksOfOneLauncherMayRunDifferentPrograms) {
  const Program zero = RankProgram(0), one({"/bin/sh", "-c", "/bin/sleep 60; true"}, ClaimOf(1));
  CommonOrigin kinship = FindKinship(kClaim, {zero.pid(), one.pid()});
  EXPECT_TRUE(kinship.one_starter);
  EXPECT_FALSE(kinship.same_command);
  EXPECT_EQ(kinship.commands[0], "'/bin/sleep 60'");
  // A wrapper with the rank's environment belongs to the rank.
  kinship = FindKinship(kClaim, {zero.pid(), OnlyChildOf(one.pid())});
  EXPECT_TRUE(kinship.one_starter && kinship.same_command);
}

TEST(Contenders, RanksFromDifferentShellsMayDifferInNumbers) {
  const std::vector<std::string> plain = {"PATH=/usr/bin:/bin"};
  const Program zero = Wrapped(0, "60", plain), one = Wrapped(1, "61.5", plain), other = Wrapped(1, "60 60s", plain);
  CommonOrigin kinship = FindKinship(kClaim, {OnlyChildOf(zero.pid()), OnlyChildOf(one.pid())});
  EXPECT_FALSE(kinship.one_starter);
  EXPECT_TRUE(kinship.same_command);
  kinship = FindKinship(kClaim, {OnlyChildOf(zero.pid()), OnlyChildOf(other.pid())});
  EXPECT_FALSE(kinship.one_starter);
  EXPECT_FALSE(kinship.same_command);
}

// Ranks of one job that share only a claim. They are forked, so that all run this test's program.
class StartByHand : public ::testing::Test {
 protected:
  BootstrapConfig ConfigOf(int rank, double timeout_s) const {
    BootstrapConfig config = Config(rank, 2, directory_.path(), timeout_s);
    config.identity.shared_claim = kClaim;
    return config;
  }
  std::unique_ptr<Child> Start(int rank, double timeout_s = 60) {
    const BootstrapConfig config = ConfigOf(rank, timeout_s);
    return std::make_unique<Child>([config] { return testing::Outcome(Bootstrap(config)); });
  }
  TestDirectory directory_;
};

TEST_F(StartByHand, RanksOfOneStarterThatRunOneProgramAreOneJob) {
  const auto zero = Start(0), one = Start(1);
  EXPECT_EQ(zero->Report(), "ok");
  EXPECT_EQ(one->Report(), "ok");
}

}  // namespace
}  // namespace horocache::net
