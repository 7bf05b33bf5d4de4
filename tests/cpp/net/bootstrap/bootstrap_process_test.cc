// Start-up of real processes: ranks that end or stop during start-up, leftovers of dead jobs, kernels without pidfds.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "net/bootstrap/connection.h"
#include "net/bootstrap/handshake.h"
#include "net/bootstrap/startup_testing.h"
#include "net/bootstrap/unix_rendezvous.h"

namespace horocache::net {
namespace {

using testing::BootstrapInThreads;
using testing::Child;
using testing::Config;
using testing::Contains;
using testing::Count;
using testing::Outcome;
using testing::TestDirectory;

// A process that calls Bootstrap and reports the outcome.
std::unique_ptr<Child> Rank(const BootstrapConfig& config) {
  return std::make_unique<Child>([config] { return Outcome(Bootstrap(config)); });
}

// A process that sends its hello and then never answers. It adds one to `came` after the hello.
std::unique_ptr<Child> MuteRank(const BootstrapConfig& config, Count* came = nullptr) {
  return std::make_unique<Child>([=]() -> std::string {
    const StatusOr<SocketPlace> place = FindRendezvous(config);
    StatusOr<UniqueFd> socket = UniqueFd();
    while (socket->get() < 0) socket = TryConnect(*place);
    Connection connection(std::move(*socket));
    Hello mine;
    mine.rank = static_cast<uint32_t>(config.identity.rank);
    mine.size = static_cast<uint32_t>(config.identity.size);
    mine.byte_order = OwnByteOrder();
    mine.job = config.identity.job;
    mine.handshake = config.handshake;
    connection.Queue(MessageType::kHello, EncodeHello(mine));
    connection.Flush();
    if (came != nullptr) came->Add();
    pause();
    return "";
  });
}

// Waits until `count` sockets of ranks 0 are in the directory.
void AwaitListeners(const std::string& directory, int count) {
  const auto listen = [&] {
    int found = 0;
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator(directory, gone)) {
      if (entry.path().extension() == ".new") return false;  // a rank is at it, and would leave this if it ended now
      found += entry.path().extension() == ".sock" ? 1 : 0;
    }
    return found >= count;
  };
  while (!listen()) usleep(500);
}

// Waits until `count` ranks have connected to the sockets in the directory.
void AwaitConnections(const std::string& directory, int count) {
  constexpr const char* kConnected = " 03 ";
  const auto connected = [&] {
    std::ifstream sockets("/proc/net/unix");
    int found = 0;
    for (std::string line; std::getline(sockets, line);) {
      found += Contains(line, directory) && Contains(line, kConnected) ? 1 : 0;
    }
    return found;
  };
  while (connected() < count) usleep(500);
}

// Makes pidfd_open fail, as in older kernels and some containers; true if that succeeded.
bool ForbidPidfds() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 434, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(BootstrapProcesses, RanksInSeparateProcessesStart) {
  TestDirectory directory;
  std::vector<std::unique_ptr<Child>> ranks;
  for (int r = 3; r >= 0; --r) {
    ranks.push_back(std::make_unique<Child>([config = Config(r, 4, directory.path()), r]() -> std::string {
      auto peers = Bootstrap(config);
      if (!peers.ok()) return Outcome(peers);
      if (peers->pids[static_cast<size_t>(r)] != getpid()) return "wrong pid";
      for (const UniqueFd& fd : peers->pidfds) {
        pollfd polled{fd.get(), POLLIN, 0};
        if (fd.get() < 0) return "no pidfd";
        (void)poll(&polled, 1, 0);
      }
      peers->arena->hint(r).words[0] = 1;
      // Ends when all ranks have written.
      for (int64_t until = NowNs() + 60 * kNsPerS; NowNs() < until; usleep(200)) {
        uint64_t sum = 0;
        for (int p = 0; p < 4; ++p) sum += peers->arena->hint(p).words[0];
        if (sum == 4) return "ok";
      }
      return "the others' words did not come";
    }));
  }
  for (auto& rank : ranks) EXPECT_EQ(rank->Report(), "ok");
}

TEST(BootstrapProcesses, ARankThatIsKilledDuringStartUpIsNamedAtOnce) {
  TestDirectory directory;
  Count came;
  auto mute = MuteRank(Config(1, 4, directory.path()), &came);
  auto zero = Rank(Config(0, 4, directory.path())), two = Rank(Config(2, 4, directory.path()));
  came.Await(1);
  AwaitConnections(directory.path(), 2);
  mute->Signal(SIGKILL);
  mute->Wait();
  for (const auto& rank : {zero.get(), two.get()}) {
    const std::string report = rank->Report();
    EXPECT_TRUE(Contains(report, "rank 1 of 4 (pid ") && Contains(report, "ended during start-up")) << report;
  }
}

TEST(BootstrapProcesses, ARankZeroThatIsKilledDuringStartUpIsNamedAndItsSocketRemoved) {
  TestDirectory directory;
  auto zero = Rank(Config(0, 3, directory.path()));
  auto one = Rank(Config(1, 3, directory.path()));
  AwaitConnections(directory.path(), 1);
  zero->Signal(SIGKILL);
  zero->Wait();
  const std::string report = one->Report();
  EXPECT_TRUE(Contains(report, "rank 0 of 3 (pid ") && Contains(report, "it ended")) << report;
}

TEST(BootstrapProcesses, ARankThatDoesNotAnswerIsNamed) {
  TestDirectory directory;
  constexpr double kTimeoutS = 3;  // enough for the mute rank to connect on busy cores
  auto mute = MuteRank(Config(1, 3, directory.path()));
  auto zero = Rank(Config(0, 3, directory.path(), kTimeoutS)), two = Rank(Config(2, 3, directory.path()));
  for (const auto& rank : {zero.get(), two.get()}) {
    const std::string report = rank->Report();
    EXPECT_TRUE(Contains(report, "rank 1 of 3 called init() but did not answer within 3 s")) << report;
  }
}

TEST(BootstrapProcesses, ARankZeroThatIsStoppedIsNamed) {
  TestDirectory directory;
  auto zero = Rank(Config(0, 3, directory.path()));
  AwaitListeners(directory.path(), 1);
  zero->Signal(SIGSTOP);
  auto one = Rank(Config(1, 3, directory.path(), 0.3));
  const std::string report = one->Report();
  EXPECT_TRUE(Contains(report, "rank 0 of 3 (pid " + std::to_string(zero->pid()) + ") listens but did not answer"))
      << report;
  zero->Signal(SIGKILL);
  zero->Wait();
  RemoveIfStale(*FindRendezvous(Config(0, 3, directory.path())));
}

TEST(BootstrapProcesses, TheSocketOfADeadJobDoesNotDisturbTheNext) {
  TestDirectory directory;
  auto dead = Rank(Config(0, 2, directory.path()));
  AwaitListeners(directory.path(), 1);
  dead->Signal(SIGKILL);
  dead->Wait();
  ASSERT_GE(TestDirectory::Entries(directory.path()), 1);
  auto one = Rank(Config(1, 2, directory.path()));
  auto zero = Rank(Config(0, 2, directory.path()));
  EXPECT_EQ(zero->Report(), "ok");
  EXPECT_EQ(one->Report(), "ok");
}

TEST(BootstrapProcesses, AnotherJobRemovesTheOldSocketOfADeadJob) {
  TestDirectory directory;
  auto dead = Rank(Config(0, 2, directory.path()));
  AwaitListeners(directory.path(), 1);
  auto waits = Config(0, 2, directory.path());
  waits.identity.job = "waits";
  auto alive = Rank(waits);
  AwaitListeners(directory.path(), 2);
  dead->Signal(SIGKILL);
  dead->Wait();
  const auto start_another = [&] {
    std::vector<BootstrapConfig> another = {Config(0, 2, directory.path()), Config(1, 2, directory.path())};
    for (BootstrapConfig& config : another) config.identity.job = "another";
    for (const auto& peers : BootstrapInThreads(another)) EXPECT_EQ(Outcome(peers), "ok");
  };
  start_another();
  EXPECT_EQ(TestDirectory::Entries(directory.path()), 2) << "a new socket may be about to listen";
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    std::filesystem::last_write_time(entry, std::filesystem::file_time_type::clock::now() - std::chrono::minutes(2));
  }
  start_another();
  EXPECT_EQ(TestDirectory::Entries(directory.path()), 1);
  waits.identity.rank = waits.identity.local_rank = 1;
  EXPECT_EQ(Rank(waits)->Report(), "ok");
  EXPECT_EQ(alive->Report(), "ok");
}

TEST(BootstrapProcesses, ARankWhoseNewSocketIsRemovedCreatesAnother) {
  TestDirectory directory;
  const std::string left = directory.Below("0000000000000001.new");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, left.data(), left.size());
  const UniqueFd dead(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  std::atomic<bool> over{false};
  std::thread cleaner([&] {  // removes leftovers, as other jobs that start all the time do
    std::error_code gone;
    while (!over) {
      for (std::filesystem::directory_iterator entry(directory.path(), gone); !gone && entry != end(entry);
           entry.increment(gone)) {
        if (entry->path().extension() == ".new" && entry->path() != left) unlink(entry->path().c_str());
      }
    }
  });
  for (int i = 0; i < 20; ++i) {
    const std::vector<BootstrapConfig> configs = {Config(0, 2, directory.path()), Config(1, 2, directory.path())};
    for (const auto& peers : BootstrapInThreads(configs)) EXPECT_EQ(Outcome(peers), "ok");
    EXPECT_FALSE(std::filesystem::exists(left));
  }
  over = true;
  cleaner.join();
}

TEST(BootstrapProcesses, AWorkerThatCannotMapTheArenaIsAnErrorOnEveryRank) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need the address space";
  TestDirectory directory;
  auto config = Config(0, 3, directory.path());
  config.layout.data_bytes = 64 << 20;
  auto zero = Rank(config);
  auto one = std::make_unique<Child>([config = Config(1, 3, directory.path())] {
    const rlimit limit{size_t{150} << 20, size_t{150} << 20};
    setrlimit(RLIMIT_AS, &limit);
    return Outcome(Bootstrap(config));
  });
  auto two = Rank(Config(2, 3, directory.path()));
  for (const auto& rank : {zero.get(), one.get(), two.get()}) {
    const std::string report = rank->Report();
    EXPECT_TRUE(Contains(report, "OutOfMemory: rank 1 (pid ") && Contains(report, "HOROCACHE_SHM_BYTES")) << report;
  }
}

// Bootstrap in a process that may open `more` files in addition to those that are open.
std::unique_ptr<Child> LimitedRank(const BootstrapConfig& config, int more) {
  return std::make_unique<Child>([config, more]() -> std::string {
    const int next = dup(STDOUT_FILENO);
    close(next);
    const rlimit limit{static_cast<rlim_t>(next + more), static_cast<rlim_t>(next + more)};
    setrlimit(RLIMIT_NOFILE, &limit);
    const std::string outcome = Outcome(Bootstrap(config));
    const bool named = Contains(outcome, "its limit is " + std::to_string(limit.rlim_cur));
    return named && Contains(outcome, "raise it (ulimit -n)") ? "limit named" : outcome;
  });
}

// The limit grows until start-up succeeds, so that each file that start-up opens exceeds the limit once.
TEST(BootstrapProcesses, TooFewDescriptorsAreAnErrorThatNamesTheLimit) {
  if (kSanitized) GTEST_SKIP() << "sanitizers open files themselves, and misjudge types where they cannot";
  TestDirectory directory;
  for (size_t culprit : {0u, 2u}) {
    int refused = 0;
    for (bool enough = false; !enough; refused += enough ? 0 : 1) {
      ASSERT_LT(refused, 30);
      std::vector<std::unique_ptr<Child>> ranks;
      for (size_t r = 0; r < 4; ++r) {
        const BootstrapConfig config = Config(static_cast<int>(r), 4, directory.path());
        ranks.push_back(r == culprit ? LimitedRank(config, refused) : Rank(config));
      }
      const std::string report = ranks[culprit]->Report();
      enough = report == "ok";
      EXPECT_TRUE(enough || report == "limit named") << refused << " more files on rank " << culprit << ": " << report;
      if (!enough) continue;  // the other ranks may wait for the failed one; Child kills them
      for (size_t r = 0; r < 4; ++r) EXPECT_EQ(ranks[r]->Report(), r == culprit ? "" : "ok");
    }
    EXPECT_GE(refused, 4) << "rank " << culprit;
  }
}

TEST(BootstrapProcesses, StartUpWorksWithoutPidfds) {
  TestDirectory directory;
  std::vector<std::unique_ptr<Child>> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.push_back(std::make_unique<Child>([config = Config(r, 3, directory.path())]() -> std::string {
      if (!ForbidPidfds()) return "cannot forbid";
      const auto peers = Bootstrap(config);
      if (!peers.ok()) return Outcome(peers);
      for (const UniqueFd& fd : peers->pidfds) {
        if (fd.get() >= 0) return "has a pidfd";
      }
      return "ok";
    }));
  }
  for (auto& rank : ranks) {
    const std::string report = rank->Report();
    if (report == "cannot forbid") GTEST_SKIP() << "seccomp is not allowed here";
    EXPECT_EQ(report, "ok");
  }
}

TEST(BootstrapProcesses, NothingIsLeftWhenAllRanksAreKilledInTheMiddle) {
  TestDirectory directory;
  for (int i = 0; i < 20; ++i) {
    std::vector<std::unique_ptr<Child>> ranks;
    for (int r = 0; r < 3; ++r) ranks.push_back(Rank(Config(r, 3, directory.Below("meet"))));
    usleep(static_cast<useconds_t>(i) * 400);
    for (auto& rank : ranks) rank->Signal(SIGKILL);
  }
  // The kernel has released memory and descriptors. A killed rank 0 leaves only a socket, which the next start with
  // this job's name replaces.
  auto zero = Rank(Config(0, 2, directory.Below("meet"))), one = Rank(Config(1, 2, directory.Below("meet")));
  EXPECT_EQ(zero->Report(), "ok");
  EXPECT_EQ(one->Report(), "ok");
  EXPECT_EQ(TestDirectory::Entries(directory.path()), 0);
}

TEST(BootstrapProcesses, FiftyStartsOfTwoProcessesLeaveNoDescriptors) {
  TestDirectory directory;
  const auto body = [&](int rank) {
    return [config = Config(rank, 2, directory.path())]() mutable -> std::string {
      const int before = testing::OpenDescriptors();
      for (uint32_t epoch = 0; epoch < 50; ++epoch) {
        config.handshake.epoch = epoch;
        const auto peers = Bootstrap(config);
        if (!peers.ok()) return "epoch " + std::to_string(epoch) + ": " + Outcome(peers);
      }
      const int after = testing::OpenDescriptors();
      return after == before ? "flat" : std::to_string(before) + " before, " + std::to_string(after) + " after";
    };
  };
  Child zero(body(0)), one(body(1));
  EXPECT_EQ(zero.Report(), "flat");
  EXPECT_EQ(one.Report(), "flat");
}

TEST(BootstrapProcesses, AForkedChildCanCloseAllLinksAndDescriptors) {
  TestDirectory directory;
  Child one([config = Config(1, 2, directory.path())]() -> std::string {
    auto peers = Bootstrap(config);
    if (!peers.ok()) return Outcome(peers);
    const int before = testing::OpenDescriptors();
    Child forked([&]() -> std::string {
      peers->CloseInChild();
      return std::to_string(testing::OpenDescriptors());
    });
    // The grandchild has the pipe of its report, but no link and no pidfd.
    return std::to_string(before - std::stoi(forked.Report()));
  });
  auto peers = Bootstrap(Config(0, 2, directory.path()));
  ASSERT_TRUE(peers.ok()) << peers.status().ToString();
  EXPECT_EQ(one.Report(), "2") << "two pidfds and one link were open, one pipe was added";
}

}  // namespace
}  // namespace horocache::net
