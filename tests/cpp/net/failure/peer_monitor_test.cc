#include "net/failure/peer_monitor.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "base/fork.h"
#include "base/mutex.h"
#include "net/bootstrap/startup_testing.h"

namespace horocache::net {
namespace {

using testing::Child;
using testing::Config;
using testing::Contains;
using testing::Outcome;
using testing::TestDirectory;

// The losses that a PeerMonitor has reported.
class Losses {
 public:
  std::function<void(int, const std::string&)> Recorder() {
    return [this](int rank, const std::string& how) {
      const MutexLock lock(mutex_);
      how_[rank] = how;
      ++calls_;
    };
  }
  // Waits for the loss of `rank` and returns its cause. Empty if the loss was not reported within a deadline that is
  // far longer than a PeerMonitor may take.
  std::string Await(int rank) {
    for (int64_t until = NowNs() + 20 * kNsPerS; NowNs() < until; usleep(500)) {
      const MutexLock lock(mutex_);
      if (how_.contains(rank)) return how_[rank];
    }
    return "";
  }
  int calls() {
    const MutexLock lock(mutex_);
    return calls_;
  }

 private:
  Mutex mutex_;
  std::map<int, std::string> how_ HC_GUARDED_BY(mutex_);
  int calls_ HC_GUARDED_BY(mutex_) = 0;
};

// A job with this process as rank 0 and children as the other ranks. Each child runs `body` after start-up.
struct ForkedJob {
  ForkedJob(int size, const std::string& directory, const std::function<std::string(int, Peers&)>& body) {
    for (int r = 1; r < size; ++r) {
      children.push_back(std::make_unique<Child>([config = Config(r, size, directory), r, body]() -> std::string {
        auto started = Bootstrap(config);
        return started.ok() ? body(r, *started) : Outcome(started);
      }));
    }
    auto started = Bootstrap(Config(0, size, directory));
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    if (started.ok()) peers = std::move(*started);
  }
  Child& operator[](int rank) { return *children[static_cast<size_t>(rank) - 1]; }

  Peers peers;
  std::vector<std::unique_ptr<Child>> children;
};

std::string Sleep(int, Peers&) {
  pause();
  return "";
}

TEST(PeerMonitorProcesses, AKilledRankIsReportedWithItsSignal) {
  TestDirectory directory;
  ForkedJob job(3, directory.path(), Sleep);
  Losses losses;
  PeerMonitor liveness(&job.peers, 0, losses.Recorder());
  job[2].Signal(SIGKILL);
  EXPECT_TRUE(Contains(losses.Await(2), "was killed by signal 9"));
  EXPECT_EQ(losses.calls(), 1);
  job[1].Signal(SIGTERM);
  EXPECT_TRUE(Contains(losses.Await(1), "was killed by signal 15"));
  EXPECT_EQ(losses.calls(), 2);
}

TEST(PeerMonitorProcesses, ARankThatExitsIsReportedWithItsCode) {
  TestDirectory directory;
  ForkedJob job(2, directory.path(), [](int, Peers&) -> std::string { _exit(7); });
  Losses losses;
  PeerMonitor liveness(&job.peers, 0, losses.Recorder());
  EXPECT_TRUE(Contains(losses.Await(1), "exited with code 7 without shutdown()"));
}

TEST(PeerMonitorProcesses, ARankThatWasReapedBeforeTheMonitorStartedIsReported) {
  TestDirectory directory;
  ForkedJob job(2, directory.path(), [](int, Peers&) -> std::string { _exit(3); });
  job[1].Wait();
  Losses losses;
  PeerMonitor liveness(&job.peers, 0, losses.Recorder());
  EXPECT_TRUE(Contains(losses.Await(1), "exited with"));
}

TEST(PeerMonitorProcesses, ARankThatEndsAfterALossIsReportedAfterThatLoss) {
  TestDirectory directory;
  ForkedJob job(3, directory.path(), Sleep);
  // Ranks 1 and 2 have ended before rank 0's monitor starts, and rank 1 had seen the loss of rank 2.
  job[2].Signal(SIGKILL);
  job[2].Wait();
  job.peers.arena->state(1).store(RankState::kJobLost);
  job[1].Signal(SIGTERM);
  job[1].Wait();
  Mutex mutex;
  std::vector<int> order;
  Losses losses;
  const auto record = losses.Recorder();
  PeerMonitor liveness(&job.peers, 0, [&](int rank, const std::string& how) {
    {
      const MutexLock lock(mutex);
      order.push_back(rank);
    }
    record(rank, how);
  });
  EXPECT_TRUE(Contains(losses.Await(2), "was killed by signal 9"));
  EXPECT_TRUE(Contains(losses.Await(1), "was killed by signal 15"));
  const MutexLock lock(mutex);
  EXPECT_EQ(order, (std::vector<int>{2, 1}));
}

TEST(PeerMonitorProcesses, EveryRankSeesTheDeathOfEveryOther) {
  TestDirectory directory;
  ForkedJob job(4, directory.path(), [](int rank, Peers& peers) {
    Losses losses;
    PeerMonitor liveness(&peers, rank, losses.Recorder());
    return rank == 1 ? Sleep(rank, peers) : losses.Await(1);
  });
  Losses losses;
  PeerMonitor liveness(&job.peers, 0, losses.Recorder());
  job[1].Signal(SIGKILL);
  EXPECT_TRUE(Contains(losses.Await(1), "signal 9"));
  EXPECT_TRUE(Contains(job[2].Report(), "signal 9"));
  EXPECT_TRUE(Contains(job[3].Report(), "signal 9"));
}

TEST(PeerMonitorProcesses, AKilledRankWithARunningForkedChildIsReported) {
  TestDirectory directory;
  ForkedJob job(2, directory.path(), [](int rank, Peers& peers) -> std::string {
    const pid_t parent = getpid();
    if (Fork() == 0) {
      // The child holds the rank's link open for longer than the monitor may take to see a loss.
      while (getppid() == parent) usleep(10'000);
      sleep(2);
      _exit(0);
    }
    return Sleep(rank, peers);
  });
  usleep(100'000);
  Losses losses;
  PeerMonitor liveness(&job.peers, 0, losses.Recorder());
  job[1].Signal(SIGKILL);
  EXPECT_TRUE(Contains(losses.Await(1), "signal 9"));
}

TEST(PeerMonitorProcesses, ARankThatHasLeftIsNotLost) {
  TestDirectory directory;
  ForkedJob job(4, directory.path(), [](int rank, Peers& peers) -> std::string {
    if (rank == 2) return Sleep(rank, peers);
    peers.arena->state(rank).store(rank == 1 ? RankState::kLeft : RankState::kLeftJobLost);
    return "left";
  });
  Losses losses;
  PeerMonitor liveness(&job.peers, 0, losses.Recorder());
  for (const int rank : {1, 3}) {
    EXPECT_EQ(job[rank].Report(), "left");
    job[rank].Wait();
  }
  // The monitor would report losses of ranks 1 and 3 before that of rank 2.
  job[2].Signal(SIGKILL);
  EXPECT_NE(losses.Await(2), "");
  EXPECT_EQ(losses.calls(), 1);
}

TEST(PeerMonitorProcesses, FindEndedFindsKilledRanksAndNoRanksThatHaveLeft) {
  TestDirectory directory;
  ForkedJob job(4, directory.path(), [](int rank, Peers& peers) -> std::string {
    if (rank != 1) return Sleep(rank, peers);
    peers.arena->state(rank).store(RankState::kLeft);
    return "left";
  });
  EXPECT_EQ(job[1].Report(), "left");
  job[1].Wait();
  EXPECT_FALSE(FindEnded(job.peers));
  for (const int rank : {3, 2}) {
    job[rank].Signal(SIGKILL);
    pollfd gone{job.peers.pidfds[static_cast<size_t>(rank)].get(), POLLIN, 0};
    ASSERT_EQ(poll(&gone, 1, -1), 1);
    const std::optional<EndedRank> ended = FindEnded(job.peers);
    ASSERT_TRUE(ended);
    EXPECT_EQ(ended->rank, rank);
    EXPECT_TRUE(Contains(ended->how, "was killed by signal 9"));
  }
}

TEST(PeerMonitorProcesses, AStoppedRankIsNotLost) {
  TestDirectory directory;
  ForkedJob job(3, directory.path(), Sleep);
  Losses losses;
  PeerMonitor liveness(&job.peers, 0, losses.Recorder());
  job[1].Signal(SIGSTOP);
  job[2].Signal(SIGKILL);
  EXPECT_NE(losses.Await(2), "");
  job[1].Signal(SIGCONT);
  EXPECT_EQ(losses.calls(), 1);
}

TEST(PeerMonitorProcesses, WithoutPidfdsRankZeroSeesClosedLinksAndInformsTheOthers) {
  TestDirectory directory;
  const auto forget_pidfds = [](Peers& peers) {
    for (UniqueFd& fd : peers.pidfds) fd.Close();
  };
  ForkedJob job(4, directory.path(), [&](int rank, Peers& peers) -> std::string {
    if (rank == 1) return Sleep(rank, peers);
    forget_pidfds(peers);
    Losses losses;
    PeerMonitor liveness(&peers, rank, losses.Recorder());
    return losses.Await(1);
  });
  forget_pidfds(job.peers);
  Losses losses;
  PeerMonitor liveness(&job.peers, 0, losses.Recorder());
  job[1].Signal(SIGKILL);
  EXPECT_EQ(losses.Await(1), "closed its connection without shutdown()");
  EXPECT_EQ(job[2].Report(), "closed its connection without shutdown()");
  EXPECT_EQ(job[3].Report(), "closed its connection without shutdown()");
}

TEST(PeerMonitorProcesses, ARankThatBecomesAnotherProgramIsLost) {
  TestDirectory directory;
  ForkedJob job(2, directory.path(), [](int, Peers&) -> std::string {
    execl("/bin/sleep", "sleep", "60", nullptr);
    return "";
  });
  Losses losses;
  PeerMonitor liveness(&job.peers, 0, losses.Recorder());
  EXPECT_EQ(losses.Await(1), "closed its connection without shutdown()");
}

// Acts as a program that closes descriptors that it does not know and opens its own files. Spares the pipe of this
// test. Returns the numbers that now refer to the program's files.
std::vector<int> TakeDescriptors() {
  std::vector<int> mine;
  struct stat about{};
  for (int fd = 3; fd < 256; ++fd) {
    if (fstat(fd, &about) != 0 || S_ISFIFO(about.st_mode)) continue;
    const UniqueFd file(memfd_create("mine", MFD_CLOEXEC));
    if (dup3(file.get(), fd, O_CLOEXEC) == fd) mine.push_back(fd);
  }
  return mine;
}

TEST(PeerMonitorProcesses, ARankWhoseProgramReopenedItsDescriptorsIsNotLostAndSeesLosses) {
  if (kSanitized) GTEST_SKIP() << "sanitizers take a number that is used again for a race";
  TestDirectory directory;
  ForkedJob job(3, directory.path(), [](int rank, Peers& peers) -> std::string {
    if (rank == 2) {
      Losses losses;
      PeerMonitor liveness(&peers, rank, losses.Recorder());
      pause();
    }
    Losses losses;
    std::string seen;
    std::vector<int> mine;
    {
      PeerMonitor liveness(&peers, rank, losses.Recorder());
      while (peers.arena->monitor_thread(2).load() == 0) usleep(1000);
      mine = TakeDescriptors();
      peers.arena->message_blocked(1) = 1;
      seen = losses.Await(2);
    }
    for (const int fd : mine) {
      if (lseek(fd, 0, SEEK_END) != 0) return "something was written into the program's file";
    }
    peers.arena->state(rank).store(RankState::kLeft);
    return seen;
  });
  Losses losses;
  PeerMonitor liveness(&job.peers, 0, losses.Recorder());
  while (job.peers.arena->message_blocked(1) == 0) usleep(1000);
  usleep(300'000);  // longer than a closed link may take to count as a loss
  EXPECT_EQ(losses.calls(), 0);
  job[2].Signal(SIGKILL);
  EXPECT_TRUE(Contains(losses.Await(2), "signal 9"));
  EXPECT_TRUE(Contains(job[1].Report(), "signal 9"));
  EXPECT_EQ(losses.calls(), 1);
}

// Two ranks in this process, without start-up.
struct Pair {
  Pair() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    const auto arena = Arena::CreateOnHeap({.ranks = 3, .max_words = 8, .ring_bytes = 256, .data_bytes = 0});
    for (Peers* peers : {&zero, &one}) {
      peers->arena = arena;
      peers->pids.assign(3, getpid());
      peers->pidfds.resize(3);
    }
    zero.links.resize(3);
    zero.links[1] = UniqueFd(ends[0]);
    one.links.emplace_back(ends[1]);
  }
  Peers zero, one;
};

TEST(PeerMonitor, AClosedLinkWithoutAPidfdIsALoss) {
  Pair pair;
  Losses losses;
  PeerMonitor liveness(&pair.one, 1, losses.Recorder());
  pair.zero.links[1].Close();
  EXPECT_EQ(losses.Await(0), "closed its connection without shutdown()");
}

TEST(PeerMonitor, ALinkThatClosesAfterLeavingIsNoLoss) {
  Pair pair;
  Losses losses;
  {
    PeerMonitor liveness(&pair.one, 1, losses.Recorder());
    pair.zero.arena->state(0).store(RankState::kLeft);
    pair.zero.links[1].Close();
    usleep(50'000);
  }
  EXPECT_EQ(losses.calls(), 0);
}

TEST(PeerMonitor, RandomBytesOnALinkAreIgnored) {
  Pair pair;
  Losses zeros, ones;
  PeerMonitor zero(&pair.zero, 0, zeros.Recorder()), one(&pair.one, 1, ones.Recorder());
  const std::string nonsense(1000, '\xff');
  ASSERT_GT(send(pair.one.links[0].get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL), 0);
  ASSERT_GT(send(pair.zero.links[1].get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL), 0);
  usleep(20'000);
  EXPECT_EQ(zeros.calls() + ones.calls(), 0);
}

TEST(PeerMonitor, LeavesNoDescriptors) {
  Pair pair;
  const int before = testing::OpenDescriptors();
  for (int i = 0; i < 200; ++i) {
    Losses losses;
    PeerMonitor liveness(&pair.zero, 0, losses.Recorder());
  }
  EXPECT_EQ(testing::OpenDescriptors(), before);
}

}  // namespace
}  // namespace horocache::net
