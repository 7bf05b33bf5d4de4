#include "net/shm/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/fork.h"
#include "net/bootstrap/startup_testing.h"

namespace horocache::net {
namespace {

ArenaLayout Small(int ranks) {
  return {.ranks = ranks,
          .max_words = 8,
          .ring_bytes = 256,
          .data_bytes = 4096,
          .message_chunks = 3,
          .message_chunk_bytes = 128};
}

void FillEverything(Arena& arena, int ranks) {
  for (int r = 0; r < ranks; ++r) {
    arena.state(r) = RankState::kRunning;
    for (const Arena::Words& area : {arena.hint(r), arena.snapshot(r, 0), arena.snapshot(r, 1)}) {
      *area.round = 1000 + static_cast<uint64_t>(r);
      for (int i = 0; i < 8; ++i) area.words[i] = static_cast<uint64_t>(r);
    }
    std::memset(arena.data(r).data(), r, arena.data(r).size());
    arena.message_blocked(r) = 7;
    for (int chunk = 0; chunk < arena.layout().message_chunks; ++chunk) {
      std::ranges::fill(arena.message_chunk(r, chunk), static_cast<std::byte>(r * 16 + chunk));
    }
    for (int to = 0; to < ranks; ++to) {
      const Arena::MessagePath path = arena.message_path(r, to);
      for (std::atomic<uint64_t>& word : path.slots->words) word = static_cast<uint64_t>(100 * r + to);
      path.slots->bytes.fill(static_cast<std::byte>(r * 16 + to));
      *path.taken = static_cast<uint32_t>(200 * r + to);
    }
    if (r == 0) continue;
    for (const Arena::Ring& ring : {arena.ring(0, r), arena.ring(r, 0)}) {
      std::memset(ring.bytes, 0x40 + r, ring.capacity);
      *ring.head = static_cast<uint64_t>(r);
    }
  }
}

void ExpectEverything(Arena& arena, int ranks) {
  for (int r = 0; r < ranks; ++r) {
    EXPECT_EQ(arena.state(r).load(), RankState::kRunning) << r;
    for (const Arena::Words& area : {arena.hint(r), arena.snapshot(r, 0), arena.snapshot(r, 1)}) {
      EXPECT_EQ(area.round->load(), 1000u + static_cast<uint64_t>(r));
      for (int i = 0; i < 8; ++i) EXPECT_EQ(area.words[i].load(), static_cast<uint64_t>(r));
    }
    for (std::byte b : arena.data(r)) ASSERT_EQ(b, static_cast<std::byte>(r));
    EXPECT_EQ(arena.message_blocked(r), 7u);
    for (int chunk = 0; chunk < arena.layout().message_chunks; ++chunk) {
      for (std::byte b : arena.message_chunk(r, chunk)) ASSERT_EQ(b, static_cast<std::byte>(r * 16 + chunk));
    }
    for (int to = 0; to < ranks; ++to) {
      const Arena::MessagePath path = arena.message_path(r, to);
      for (const std::atomic<uint64_t>& word : path.slots->words) EXPECT_EQ(word, static_cast<uint64_t>(100 * r + to));
      for (std::byte b : path.slots->bytes) ASSERT_EQ(b, static_cast<std::byte>(r * 16 + to));
      EXPECT_EQ(*path.taken, static_cast<uint32_t>(200 * r + to));
    }
    if (r == 0) continue;
    for (const Arena::Ring& ring : {arena.ring(0, r), arena.ring(r, 0)}) {
      for (size_t i = 0; i < ring.capacity; ++i) ASSERT_EQ(ring.bytes[i], static_cast<std::byte>(0x40 + r));
      EXPECT_EQ(ring.head->load(), static_cast<uint64_t>(r));
      EXPECT_EQ(ring.tail->load(), 0u);
    }
  }
}

TEST(Arena, AreasOnTheHeapDoNotOverlap) {
  auto arena = Arena::CreateOnHeap(Small(5));
  ASSERT_NE(arena, nullptr);
  EXPECT_EQ(arena->fd(), -1);
  FillEverything(*arena, 5);
  ExpectEverything(*arena, 5);
}

TEST(Arena, AnAttachedArenaShowsTheWritesOfAnotherMapping) {
  auto created = Arena::CreateShared(Small(3));
  ASSERT_TRUE(created.ok()) << created.status().ToString();
  auto attached = Arena::Attach(fcntl((*created)->fd(), F_DUPFD_CLOEXEC, 0));
  ASSERT_TRUE(attached.ok()) << attached.status().ToString();
  EXPECT_EQ((*attached)->layout().ranks, 3);
  FillEverything(**created, 3);
  (*created)->CloseFd();
  created->reset();
  ExpectEverything(**attached, 3);
}

TEST(Arena, EveryWriterHasItsOwnCacheLines) {
  auto arena = Arena::CreateOnHeap(Small(4));
  std::set<uintptr_t> lines;
  const auto line = [](const void* p) { return reinterpret_cast<uintptr_t>(p) / 64; };
  for (int r = 0; r < 4; ++r) {
    EXPECT_TRUE(lines.insert(line(&arena->state(r))).second);
    EXPECT_TRUE(lines.insert(line(&arena->message_blocked(r))).second);
    for (const int from : {0, 1, 2, 3}) {
      const Arena::MessagePath path = arena->message_path(from, r);
      EXPECT_TRUE(lines.insert(line(&path.slots->words)).second);
      EXPECT_TRUE(lines.insert(line(&path.slots->bytes)).second);
      EXPECT_EQ(lines.insert(line(path.taken)).second, from == 0) << "a receiver's words lie together";
    }
    EXPECT_TRUE(lines.insert(line(arena->hint(r).round)).second);
    EXPECT_TRUE(lines.insert(line(arena->snapshot(r, 0).round)).second);
    EXPECT_TRUE(lines.insert(line(arena->snapshot(r, 1).round)).second);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->data(r).data()) % 4096, 0u);
    if (r == 0) continue;
    for (const Arena::Ring& ring : {arena->ring(0, r), arena->ring(r, 0)}) {
      EXPECT_TRUE(lines.insert(line(ring.head)).second);
      EXPECT_TRUE(lines.insert(line(ring.tail)).second);
      EXPECT_TRUE(lines.insert(line(ring.blocked)).second);
      EXPECT_TRUE(lines.insert(line(ring.bytes)).second);
    }
  }
}

TEST(Arena, TheDefaultHoldsABitForAMillionCacheEntries) {
  auto arena = Arena::CreateOnHeap({.ranks = 2});
  EXPECT_EQ(arena->layout().max_words, (1 << 20) / 64 + 3);
}

TEST(Arena, ImpossibleLayoutsAreRefused) {
  for (const ArenaLayout& layout :
       {ArenaLayout{.ranks = 0}, ArenaLayout{.ranks = 1 << 20}, ArenaLayout{.ranks = 2, .max_words = -1},
        ArenaLayout{.ranks = 2, .ring_bytes = 1}, ArenaLayout{.ranks = 2, .data_bytes = int64_t{1} << 50},
        ArenaLayout{.ranks = 2, .message_chunks = -1}, ArenaLayout{.ranks = 2, .message_chunks = 1 << 16},
        ArenaLayout{.ranks = 2, .message_chunk_bytes = 1 << 20}}) {
    EXPECT_EQ(Arena::CreateShared(layout).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(Arena::CreateOnHeap(layout), nullptr);
  }
}

TEST(Arena, TooLittleMemoryIsAnErrorThatNamesTheSizeAndTheKnob) {
  const pid_t child = Fork();
  if (child == 0) {
    const rlimit limit{size_t{1} << 30, size_t{1} << 30};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto arena = Arena::CreateShared({.ranks = 2, .data_bytes = int64_t{1} << 30});
    const std::string text = arena.ok() ? "" : arena.status().message();
    const bool good = !arena.ok() && arena.status().code() == StatusCode::kOutOfMemory &&
                      text.find("HOROCACHE_SHM_BYTES") != std::string::npos &&
                      text.find("2051 MiB") != std::string::npos && text.find("1073741824") != std::string::npos;
    _exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Arena, TooLittleAddressSpaceIsAnErrorThatNamesTheKnob) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need the address space";
  const pid_t child = Fork();
  if (child == 0) {
    const rlimit limit{size_t{200} << 20, size_t{200} << 20};
    setrlimit(RLIMIT_AS, &limit);
    const auto arena = Arena::CreateShared({.ranks = 2, .data_bytes = int64_t{128} << 20});
    _exit(!arena.ok() && arena.status().code() == StatusCode::kOutOfMemory ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Arena, AttachRefusesOtherMemory) {
  const auto refuse = [](int fd, const char* why) {
    auto arena = Arena::Attach(fd);
    ASSERT_FALSE(arena.ok());
    EXPECT_EQ(arena.status().code(), StatusCode::kCorrupt);
    EXPECT_NE(arena.status().message().find(why), std::string::npos) << arena.status().message();
  };
  refuse(open("/dev/null", O_RDWR | O_CLOEXEC), "not sealed");
  int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  refuse(fd, "not sealed");
  fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
  refuse(fd, "too short");
  fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(fd, 1 << 16), 0);
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
  refuse(fd, "magic");

  auto good = Arena::CreateShared(Small(2));
  ASSERT_TRUE(good.ok());
  std::vector<char> copy(1 << 16);
  const ssize_t bytes = pread((*good)->fd(), copy.data(), copy.size(), 0);
  ASSERT_GT(bytes, 0);
  fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(pwrite(fd, copy.data(), static_cast<size_t>(bytes) - 4096, 0), bytes - 4096);
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
  refuse(fd, "its layout needs");
  copy[8] = 77;
  fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(pwrite(fd, copy.data(), static_cast<size_t>(bytes), 0), bytes);
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
  refuse(fd, "its version is 77");
}

TEST(Arena, AChildOfForkDoesNotHaveTheMapping) {
  auto arena = Arena::CreateShared(Small(2));
  ASSERT_TRUE(arena.ok());
  const pid_t child = Fork();
  if (child == 0) {
    // mincore fails with ENOMEM where nothing is mapped. It needs the address of a page, and pages may have 64 KiB.
    unsigned char resident = 0;
    std::byte* const at = (*arena)->data(0).data();
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    _exit(mincore(at - reinterpret_cast<uintptr_t>(at) % page, 1, &resident) == -1 && errno == ENOMEM ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Arena, ARankThatLeavesALostJobWritesTheReason) {
  const auto arena = Arena::CreateOnHeap(Small(2));
  EXPECT_TRUE(arena->WhyJobLost(1).ok());
  arena->state(1) = RankState::kLeftJobLost;
  EXPECT_TRUE(arena->WhyJobLost(1).ok()) << "it has no reason of its own";
  arena->state(1) = RankState::kRunning;
  arena->LeaveJobLost(1, StatusCode::kAborted, "why " + std::string(1000, 'x'));
  EXPECT_EQ(arena->state(1).load(), RankState::kLeftJobLost);
  arena->LeaveJobLost(1, StatusCode::kStall, "the first reason counts");
  const Status why = arena->WhyJobLost(1);
  EXPECT_EQ(why.code(), StatusCode::kAborted);
  EXPECT_EQ(why.message(), "why " + std::string(496, 'x'));
}

TEST(Arena, ARankThatHasSeenALossWritesTheReasonBeforeItLeaves) {
  const auto arena = Arena::CreateOnHeap(Small(2));
  arena->state(1) = RankState::kRunning;
  arena->NoteJobLost(1, StatusCode::kPeerLost, "rank 0 is lost");
  EXPECT_EQ(arena->state(1).load(), RankState::kJobLost);
  EXPECT_EQ(arena->WhyJobLost(1).message(), "rank 0 is lost");
  arena->LeaveJobLost(1, StatusCode::kOk, "");
  EXPECT_EQ(arena->state(1).load(), RankState::kLeftJobLost);
  arena->NoteJobLost(1, StatusCode::kPeerLost, "another cause");
  EXPECT_EQ(arena->state(1).load(), RankState::kLeftJobLost) << "it has left";
  EXPECT_EQ(arena->WhyJobLost(1).code(), StatusCode::kPeerLost);
  EXPECT_EQ(arena->WhyJobLost(1).message(), "rank 0 is lost");
  arena->LeaveJobLost(1, StatusCode::kOutOfMemory, "no memory");
  EXPECT_EQ(arena->WhyJobLost(1).message(), "no memory") << "that is why it leaves";
}

// The kernel's flags of each mapping of memory that ranks share.
std::vector<std::string> FlagsOfSharedMappings() {
  std::ifstream smaps("/proc/self/smaps");
  std::vector<std::string> flags;
  bool shared = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find("memfd:horocache") != std::string::npos) shared = true;
    if (!line.starts_with("VmFlags:")) continue;
    if (shared) flags.push_back(line + " ");
    shared = false;
  }
  return flags;
}

TEST(Arena, CoreDumpsLeaveItsMemoryOut) {
  ArenaLayout layout = Small(2);
  layout.region_bytes = int64_t{4} << 20;
  const auto arena = Arena::CreateShared(layout);
  ASSERT_TRUE(arena.ok());
  (*arena)->regions()->Inherit(0);  // splits a mapping
  const std::vector<std::string> flags = FlagsOfSharedMappings();
  ASSERT_GE(flags.size(), 2u);
  for (const std::string& of_one : flags) EXPECT_NE(of_one.find(" dd "), std::string::npos) << of_one;
}

TEST(Arena, LockingAllFutureMemoryDoesNotFillTheRegions) {
  if (kSanitized) GTEST_SKIP() << "sanitizers map more than may be locked";
  const pid_t child = Fork();
  if (child == 0) {
    if (mlockall(MCL_FUTURE) != 0) _exit(2);
    ArenaLayout layout = Small(2);
    layout.region_bytes = int64_t{64} << 20;
    const auto arena = Arena::CreateShared(layout);
    struct stat file{};
    if (!arena.ok() || (*arena)->regions() == nullptr || fstat((*arena)->fd(), &file) != 0) _exit(2);
    const auto piece = (*arena)->regions()->of(0).first(size_t{2} << 20);
    const bool usable = (*arena)->regions()->Commit(piece);
    (*arena)->regions()->Release(piece);
    const bool empty = file.st_blocks * 512 < int64_t{8} << 20;
    _exit(usable && empty && fstat((*arena)->fd(), &file) == 0 && file.st_blocks * 512 < int64_t{2} << 20 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "memory cannot be locked here";
  EXPECT_EQ(status, 0);
}

TEST(Doorbell, NoRingIsLostBetweenTwoThreads) {
  constexpr uint32_t kRings = 100'000;
  auto arena = Arena::CreateOnHeap(Small(2));
  Doorbell ping = arena->doorbell(0), pong = arena->doorbell(1);
  std::atomic<uint32_t> ball{0};
  std::atomic<uint32_t> late{0};
  // Each turn sleeps at most 20 s, so that a lost wake-up is counted and the game goes on.
  const auto play = [&](Doorbell mine, Doorbell other, uint32_t parity, uint32_t who) {
    for (uint32_t turn = parity; turn < kRings; turn += 2) {
      for (;;) {
        const uint32_t seen = mine.Rung();
        if (ball.load(std::memory_order_relaxed) == turn) break;
        mine.Arm(who);
        if (ball.load(std::memory_order_relaxed) == turn) {
          mine.Disarm(who);
          break;
        }
        const auto before = std::chrono::steady_clock::now();
        mine.Sleep(seen, who, 20'000'000'000);
        if (std::chrono::steady_clock::now() - before > std::chrono::seconds(19)) late.fetch_add(1);
      }
      ball.store(turn + 1, std::memory_order_relaxed);
      other.Ring();
    }
  };
  std::thread a([&] { play(ping, pong, 0, Doorbell::kBackground); });
  std::thread b([&] { play(pong, ping, 1, Doorbell::kWaiter); });
  a.join();
  b.join();
  EXPECT_EQ(ball.load(), kRings);
  EXPECT_EQ(late.load(), 0u);
}

TEST(Doorbell, ARingBetweenTheCheckAndTheSleepEndsTheSleepAtOnce) {
  auto arena = Arena::CreateOnHeap(Small(1));
  Doorbell bell = arena->doorbell(0);
  const uint32_t seen = bell.Rung();
  bell.Arm(Doorbell::kBackground);
  bell.Ring();
  const auto before = std::chrono::steady_clock::now();
  bell.Sleep(seen, Doorbell::kBackground, 60'000'000'000);
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(30));
}

TEST(Doorbell, DisarmingOneSleeperLeavesTheOtherArmed) {
  auto arena = Arena::CreateOnHeap(Small(1));
  Doorbell bell = arena->doorbell(0);
  const uint32_t seen = bell.Rung();
  bell.Arm(Doorbell::kBackground);
  std::atomic<bool> woke{false};
  std::thread sleeper([&] {
    while (bell.Rung() == seen) bell.Sleep(seen, Doorbell::kBackground, 60'000'000'000);
    woke = true;
  });
  bell.Arm(Doorbell::kWaiter);
  bell.Disarm(Doorbell::kWaiter);
  bell.Ring();
  sleeper.join();
  EXPECT_TRUE(woke);
}

}  // namespace
}  // namespace horocache::net
