// Start-up of ranks that are threads of this process: agreement, every refusal, hostile clients.
#include "net/bootstrap/bootstrap.h"

#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <random>

#include "net/bootstrap/startup_testing.h"

namespace horocache::net {
namespace {

using testing::BootstrapInThreads;
using testing::Config;
using testing::Contains;
using testing::OpenDescriptors;
using testing::Outcome;
using testing::TestDirectory;

std::vector<BootstrapConfig> Job(int size, const std::string& directory, double timeout_s = 60) {
  std::vector<BootstrapConfig> configs;
  for (int rank = 0; rank < size; ++rank) configs.push_back(Config(rank, size, directory, timeout_s));
  return configs;
}

void ExpectOnAll(const std::vector<StatusOr<Peers>>& results, StatusCode code, const std::vector<std::string>& parts) {
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_FALSE(results[i].ok()) << "process " << i;
    EXPECT_EQ(results[i].status().code(), code) << "process " << i << ": " << results[i].status().ToString();
    for (const std::string& part : parts) {
      EXPECT_TRUE(Contains(results[i].status().message(), part))
          << "process " << i << " does not say '" << part << "': " << results[i].status().message();
    }
  }
}

std::string OnlySocketIn(const std::string& directory) {
  DIR* open = opendir(directory.c_str());
  std::string found;
  while (const dirent* entry = open == nullptr ? nullptr : readdir(open)) {
    if (entry->d_name[0] != '.') found = directory + "/" + entry->d_name;
  }
  if (open != nullptr) closedir(open);
  return found;
}

UniqueFd ConnectTo(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) fd.Close();
  return fd;
}

// Connects as soon as a rank listens.
UniqueFd ConnectSoon(const std::string& directory) {
  for (int64_t until = NowNs() + 50 * kNsPerS; NowNs() < until;) {
    const std::string path = OnlySocketIn(directory);
    UniqueFd fd = path.empty() ? UniqueFd() : ConnectTo(path);
    if (fd.get() >= 0) return fd;
    usleep(500);
  }
  return UniqueFd();
}

TEST(Bootstrap, RanksShareOneArenaAndHavePidfdsOfAllProcesses) {
  TestDirectory directory;
  for (int size : {2, 3, 8}) {
    auto results = BootstrapInThreads(Job(size, directory.path()));
    for (int r = 0; r < size; ++r) {
      auto& result = results[static_cast<size_t>(r)];
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_EQ(result->pids, std::vector<int>(static_cast<size_t>(size), getpid()));
      ASSERT_EQ(result->pidfds.size(), static_cast<size_t>(size));
      for (const UniqueFd& fd : result->pidfds) EXPECT_GE(fd.get(), 0);
      ASSERT_EQ(result->links.size(), r == 0 ? static_cast<size_t>(size) : 1u);
      EXPECT_EQ(result->arena->fd(), -1);
      EXPECT_EQ(result->arena->layout().ranks, size);
      std::memset(result->arena->data(r).data(), 'a' + r, 4096);
    }
    for (auto& result : results) {
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ(result->arena->data(r)[4095], static_cast<std::byte>('a' + r));
        EXPECT_EQ(result->arena->state(r).load(), RankState::kRunning);
      }
    }
    EXPECT_EQ(TestDirectory::Entries(directory.path()), 0);
  }
}

TEST(Bootstrap, OneRankAloneOpensNoSocket) {
  TestDirectory directory;
  auto peers = Bootstrap(Config(0, 1, directory.Below("never-made")));
  ASSERT_TRUE(peers.ok()) << peers.status().ToString();
  EXPECT_EQ(peers->pids, std::vector<int>{getpid()});
  EXPECT_EQ(peers->links.size(), 1u);
  EXPECT_EQ(peers->arena->layout().ranks, 1);
}

TEST(Bootstrap, EveryRankGetsTheAnnouncementOfRank0) {
  TestDirectory directory;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{70'000}, kMaxAnnouncement}) {
    auto configs = Job(5, directory.path());
    std::string text;
    while (text.size() < bytes) text += "rule " + std::to_string(text.size()) + std::string("\n\0\xff", 3);
    text.resize(bytes);
    configs[0].announcement = text;
    configs[2].announcement = "not rank 0's";
    for (const auto& result : BootstrapInThreads(configs)) {
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      EXPECT_TRUE(result->announcement == text) << bytes << " bytes, got " << result->announcement.size();
    }
  }
}

TEST(Bootstrap, OneRankAloneHasItsOwnAnnouncement) {
  BootstrapConfig config = Config(0, 1, "/tmp");
  config.announcement = "rules";
  const auto peers = Bootstrap(config);
  ASSERT_TRUE(peers.ok()) << peers.status().ToString();
  EXPECT_EQ(peers->announcement, "rules");
}

TEST(Bootstrap, AnAnnouncementThatIsTooLongIsAnErrorBeforeTheRankMeetsOthers) {
  TestDirectory directory;
  for (const int size : {1, 2}) {
    BootstrapConfig config = Config(0, size, directory.path());
    config.announcement.assign(kMaxAnnouncement + 1, 'x');
    const auto peers = Bootstrap(config);
    EXPECT_EQ(peers.status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(Contains(peers.status().message(), "262145 bytes; at most 262144")) << peers.status().message();
  }
}

TEST(Bootstrap, ADirectoryThatStartUpCreatedIsRemoved) {
  TestDirectory directory;
  auto results = BootstrapInThreads(Job(2, directory.Below("made")));
  for (auto& result : results) EXPECT_EQ(Outcome(result), "ok");
}

TEST(Bootstrap, TheDefaultDirectoryIsEmptyOrRemovedAfterwards) {
  auto results = BootstrapInThreads(Job(2, ""));
  for (auto& result : results) EXPECT_EQ(Outcome(result), "ok");
}

TEST(Bootstrap, RanksOnSeveralHostsAreAnUnsupportedError) {
  BootstrapConfig config = Config(1, 4, "/tmp");
  config.identity.cross_size = 2;
  const auto peers = Bootstrap(config);
  EXPECT_EQ(peers.status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(Contains(peers.status().message(), "4 ranks on 2 hosts (")) << peers.status().message();
}

TEST(Bootstrap, EverySettingThatDiffersIsListedOnEveryRank) {
  TestDirectory directory;
  auto configs = Job(4, directory.path());
  configs[1].handshake.agree = "cache_capacity=512\ncycle_time=1.0\n";
  configs[3].handshake.agree = "cache_capacity=512\ncycle_time=1.0\nextra=yes\n";
  configs[3].handshake.version = "1.2.4";
  const auto results = BootstrapInThreads(configs);
  ExpectOnAll(results, StatusCode::kVersionSkew,
              {"cache_capacity: '1024' on ranks 0 and 2, '512' on ranks 1 and 3",
               "version of horocache: '1.2.3' on ranks 0, 1 and 2, '1.2.4' on rank 3", "extra: ", "'yes' on rank 3"});
  for (const auto& result : results) EXPECT_FALSE(Contains(result.status().message(), "cycle_time"));
}

TEST(Bootstrap, ARankThatLearnsOfAFailureDoesNotComeToTheSameStartAgain) {
  TestDirectory directory;
  auto configs = Job(2, directory.path());
  configs[1].handshake.agree = "cache_capacity=512\n";
  std::thread root([&] { EXPECT_FALSE(Bootstrap(configs[0]).ok()); });
  EXPECT_FALSE(Bootstrap(configs[1]).ok());
  EXPECT_EQ(OnlySocketIn(directory.path()), "");
  root.join();
}

TEST(Bootstrap, AnotherProtocolIsAVersionSkewOnBothRanks) {
  TestDirectory directory;
  auto configs = Job(2, directory.path());
  configs[1].handshake.protocol = 2;
  ExpectOnAll(BootstrapInThreads(configs), StatusCode::kVersionSkew, {"protocol: '1' on rank 0, '2' on rank 1"});
}

TEST(Bootstrap, AMissingRankIsNamedOnEveryOtherRank) {
  TestDirectory directory;
  auto configs = Job(4, directory.path(), 0.3);
  configs.pop_back();
  ExpectOnAll(BootstrapInThreads(configs), StatusCode::kStartup,
              {"rank 3 of 4 did not call init() within 0.3 s", "HOROCACHE_START_TIMEOUT"});
  EXPECT_EQ(TestDirectory::Entries(directory.path()), 0);
}

TEST(Bootstrap, AWorkerWithAShorterTimeoutGetsTheMissingRanks) {
  TestDirectory directory;
  auto configs = Job(3, directory.path());
  configs[1].timeout_ns = 300'000'000;
  configs.pop_back();
  ExpectOnAll(BootstrapInThreads(configs), StatusCode::kStartup, {"rank 2 of 3 did not call init()", "after rank 1"});
}

// When a process set bootstraps, errors call ranks by their numbers in the job and name the set instead of init().
TEST(Bootstrap, ErrorsOfAProcessSetUseTheRanksOfTheJob) {
  const auto of_set = [](std::vector<BootstrapConfig> configs) {
    for (BootstrapConfig& config : configs) {
      config.job_ranks = {2, 5, 7};
      config.process_set = "process set 4";
    }
    return configs;
  };
  TestDirectory directory;
  std::vector<BootstrapConfig> configs = of_set(Job(3, directory.path(), 0.3));
  const std::vector<BootstrapConfig> two = {configs[0], configs[2]};
  ExpectOnAll(
      BootstrapInThreads(two), StatusCode::kStartup,
      {"rank 5 did not connect to process set 4 within 0.3 s", "another rank before it connects to process set 4?"});
  const std::vector<BootstrapConfig> rootless = {configs[1]};
  ExpectOnAll(BootstrapInThreads(rootless), StatusCode::kStartup,
              {"rank 2 did not connect to process set 4", "Is rank 2 running"});
  configs[1].handshake.agree = "x=1\n";
  ExpectOnAll(BootstrapInThreads(configs), StatusCode::kVersionSkew, {"ranks 2 and 7", "on rank 5"});
}

TEST(Bootstrap, AMissingRankZeroIsNamed) {
  TestDirectory directory;
  for (const std::string& path : {directory.path(), directory.Below("not-there")}) {
    ExpectOnAll(BootstrapInThreads({Config(1, 2, path, 0.2)}), StatusCode::kStartup,
                {"rank 0 of 2 did not call init() within 0.2 s", "HOROCACHE_RENDEZVOUS_DIR"});
  }
}

TEST(Bootstrap, TwoProcessesWithOneRankAreAnErrorOnEveryRank) {
  TestDirectory directory;
  auto configs = Job(3, directory.path());
  configs[2].identity.rank = 1;
  ExpectOnAll(BootstrapInThreads(configs), StatusCode::kStartup,
              {"two processes claim rank 1", "pid " + std::to_string(getpid())});
}

TEST(Bootstrap, TwoProcessesThatClaimRankZeroBothGetAnError) {
  TestDirectory directory;
  ExpectOnAll(BootstrapInThreads({Config(0, 2, directory.path()), Config(0, 2, directory.path())}),
              StatusCode::kStartup, {"two processes claim rank 0", "pid " + std::to_string(getpid())});
}

TEST(Bootstrap, DifferentSizesAreAnError) {
  TestDirectory directory;
  for (int other : {2, 5}) {
    auto configs = Job(3, directory.path());
    configs[1].identity.size = other;
    ExpectOnAll(BootstrapInThreads(configs), StatusCode::kStartup,
                {"rank 0 (pid", "has size 3", "rank 1 (pid", "has size " + std::to_string(other)});
  }
}

TEST(Bootstrap, TooLittleMemoryOnRankZeroIsAnErrorOnEveryRank) {
  TestDirectory directory;
  auto configs = Job(3, directory.path());
  configs[0].layout.data_bytes = int64_t{1} << 50;
  ExpectOnAll(BootstrapInThreads(configs), StatusCode::kInvalidArgument, {"rank 0: no arena"});
}

TEST(Bootstrap, EpochsOfAJobAreSeparate) {
  TestDirectory directory;
  auto configs = Job(2, directory.path());
  for (int rank = 0; rank < 2; ++rank) {
    configs.push_back(Config(rank, 2, directory.path()));
    configs.back().handshake.epoch = 2;
  }
  for (const auto& result : BootstrapInThreads(configs)) EXPECT_EQ(Outcome(result), "ok");
}

TEST(Bootstrap, TwoJobsInOneDirectoryAreSeparate) {
  TestDirectory directory;
  for (int round = 0; round < 20; ++round) {
    std::vector<BootstrapConfig> configs;
    for (int job = 0; job < 3; ++job) {
      for (int rank = 0; rank < 2; ++rank) {
        configs.push_back(Config(rank, 2, directory.Below("shared")));
        configs.back().identity.job = "job " + std::to_string(job);
        configs.back().handshake.agree = "job=" + std::to_string(job);
      }
    }
    for (const auto& result : BootstrapInThreads(configs)) ASSERT_EQ(Outcome(result), "ok") << "round " << round;
  }
  EXPECT_EQ(TestDirectory::Entries(directory.path()), 0);
}

TEST(Bootstrap, ADirectoryThatOthersMayEnterIsRefused) {
  TestDirectory directory;
  const std::string open = directory.Below("open"), link = directory.Below("link"), file = directory.Below("file");
  ASSERT_EQ(mkdir(open.c_str(), 0755), 0);
  ASSERT_EQ(chmod(open.c_str(), 0755), 0);
  ASSERT_EQ(symlink(open.c_str(), link.c_str()), 0);
  ASSERT_GE(UniqueFd(::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)).get(), 0);
  for (int rank : {0, 1}) {
    for (const auto& [path, why] : std::vector<std::pair<std::string, std::string>>{
             {open, "has mode 0755"}, {link, "is a symbolic link"}, {file, "is not a directory"}}) {
      ExpectOnAll(BootstrapInThreads({Config(rank, 2, path)}), StatusCode::kStartup, {why, "HOROCACHE_RENDEZVOUS_DIR"});
    }
  }
  unlink(link.c_str());
  unlink(file.c_str());
  rmdir(open.c_str());
}

TEST(Bootstrap, AllRanksAvoidADirectoryThatAnotherUserCreated) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to change the owner";
  TestDirectory directory;
  const std::string wanted = directory.Below("wanted");
  const auto place = [&](int number) { return number == 0 ? wanted : wanted + "." + std::to_string(number); };
  ASSERT_EQ(mkdir(place(0).c_str(), 0700), 0);
  ASSERT_EQ(symlink("/etc", place(1).c_str()), 0);
  ASSERT_EQ(mkfifo(place(2).c_str(), 0600), 0);
  ASSERT_EQ(close(open(place(3).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
  for (int number = 0; number < 4; ++number) ASSERT_EQ(lchown(place(number).c_str(), 12345, 12345), 0);
  for (const auto& peers : BootstrapInThreads(Job(3, wanted))) EXPECT_TRUE(peers.ok()) << Outcome(peers);
  // Start-up gives up after 16 directories.
  for (int number = 4; number < 16; ++number) {
    ASSERT_EQ(mkdir(place(number).c_str(), 0700), 0);
    ASSERT_EQ(chown(place(number).c_str(), 12345, 12345), 0);
  }
  for (int rank : {0, 1}) {
    ExpectOnAll(BootstrapInThreads({Config(rank, 2, wanted)}), StatusCode::kStartup,
                {"belongs to another user", "HOROCACHE_RENDEZVOUS_DIR"});
  }
  for (int number = 0; number < 16; ++number) {
    if (rmdir(place(number).c_str()) != 0) unlink(place(number).c_str());
  }
}

TEST(Bootstrap, ADirectoryThatCannotBeMadeIsAnErrorOnEveryRank) {
  TestDirectory directory;
  const std::string path = directory.Below("not-there/below");
  ExpectOnAll(BootstrapInThreads({Config(0, 2, path), Config(1, 2, path)}), StatusCode::kStartup,
              {"cannot create the directory", "HOROCACHE_RENDEZVOUS_DIR"});
}

TEST(Bootstrap, APathTooLongForASocketNamesTheKnob) {
  const std::string path = "/tmp/" + std::string(100, 'x');
  for (int rank : {0, 1}) {
    ExpectOnAll(BootstrapInThreads({Config(rank, 2, path)}), StatusCode::kStartup,
                {"a socket's may have 107", "HOROCACHE_RENDEZVOUS_DIR"});
  }
}

TEST(Bootstrap, ALockThatAnotherProcessHoldsOnTheDirectoryDoesNotMatter) {
  TestDirectory directory;
  const UniqueFd lock(open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(flock(lock.get(), LOCK_EX), 0);
  for (const auto& peers : BootstrapInThreads(Job(2, directory.path()))) EXPECT_TRUE(peers.ok()) << Outcome(peers);
}

TEST(Bootstrap, SilentAndInvalidClientsDoNotDisturbTheRanks) {
  TestDirectory directory;
  auto configs = Job(3, directory.path());
  std::vector<UniqueFd> silent;
  std::vector<StatusOr<Peers>> first;
  std::thread root([&] { first = BootstrapInThreads({configs[0]}); });
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {
    UniqueFd fd = ConnectSoon(directory.path());
    ASSERT_GE(fd.get(), 0);
    std::string bytes(random() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    // Half of the clients begin like a hello, with a random length.
    if (i % 2 == 0) bytes.insert(0, std::string("HCB1\1\0\0\0", 8));
    if (i % 5 == 0) bytes.clear();
    if (!bytes.empty()) send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (i % 3 != 0) silent.push_back(std::move(fd));
  }
  const auto rest = BootstrapInThreads({configs[1], configs[2]});
  root.join();
  for (const auto& result : rest) EXPECT_EQ(Outcome(result), "ok");
  EXPECT_EQ(Outcome(first[0]), "ok");
}

TEST(Bootstrap, DroppedClientsAreCountedInTheError) {
  TestDirectory directory;
  std::vector<StatusOr<Peers>> results;
  std::thread root([&] { results = BootstrapInThreads({Config(0, 2, directory.path(), 1)}); });
  for (int i = 0; i < 3; ++i) {
    const UniqueFd fd = ConnectSoon(directory.path());
    send(fd.get(), "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL);
    char byte = 0;
    EXPECT_LE(recv(fd.get(), &byte, 1, 0), 0) << "nonsense was answered";
  }
  root.join();
  ExpectOnAll(results, StatusCode::kStartup, {"rank 1 of 2 did not call init()", "did not say hello: 3"});
}

TEST(Bootstrap, AProcessOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to act as another user";
  TestDirectory directory;
  std::vector<StatusOr<Peers>> results;
  std::thread root([&] { results = BootstrapInThreads({Config(0, 2, directory.path(), 1)}); });
  {
    const UniqueFd wait = ConnectSoon(directory.path());
  }
  const std::string path = OnlySocketIn(directory.path());
  testing::Child stranger([&] {
    // The directory's mode would keep the stranger out, but its owner may have changed the mode.
    chmod(directory.path().c_str(), 0755);
    chmod(path.c_str(), 0777);
    if (setgid(12345) != 0 || setuid(12345) != 0) return "no other user";
    const UniqueFd fd = ConnectTo(path);
    char byte = 0;
    return fd.get() >= 0 && recv(fd.get(), &byte, 1, 0) <= 0 ? "refused" : "let in";
  });
  EXPECT_EQ(stranger.Report(), "refused");
  chmod(directory.path().c_str(), 0700);
  root.join();
  ExpectOnAll(results, StatusCode::kStartup, {"connections of other users refused: 1"});
}

TEST(Bootstrap, FailuresLeaveNoDescriptors) {
  TestDirectory directory;
  const int before = OpenDescriptors();
  for (int i = 0; i < 5; ++i) {
    auto configs = Job(3, directory.path());
    configs[2].handshake.protocol = 9;
    ExpectOnAll(BootstrapInThreads(configs), StatusCode::kVersionSkew, {});
    configs[2] = configs[1];
    ExpectOnAll(BootstrapInThreads(configs), StatusCode::kStartup, {});
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(Bootstrap, FiftyStartsLeaveNoDescriptors) {
  TestDirectory directory;
  const int before = OpenDescriptors();
  for (int i = 0; i < 50; ++i) {
    auto configs = Job(2, directory.path());
    for (auto& config : configs) config.handshake.epoch = static_cast<uint32_t>(i);
    for (const auto& result : BootstrapInThreads(configs)) ASSERT_EQ(Outcome(result), "ok");
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

}  // namespace
}  // namespace horocache::net
