#include "net/shm/message_link.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fork.h"
#include "testing/seeded_random.h"

namespace horocache::net {
namespace {

using Received = std::vector<std::pair<int, std::string>>;

std::span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

struct LinkWorld {
  explicit LinkWorld(int ranks, int chunks = 16, int64_t chunk_bytes = 256)
      : arena(Arena::CreateOnHeap({.ranks = ranks,
                                   .max_words = 8,
                                   .ring_bytes = 256,
                                   .data_bytes = 0,
                                   .message_chunks = chunks,
                                   .message_chunk_bytes = chunk_bytes})) {
    for (int rank = 0; rank < ranks; ++rank) links.push_back(MakeShmLink(arena, rank));
  }
  Link& operator[](int rank) { return *links[static_cast<size_t>(rank)]; }
  bool Send(int from, int to, const std::string& frame) { return (*this)[from].TrySend(to, Bytes(frame), {}); }
  // Receives all frames that have arrived at the rank.
  Received Take(int rank) {
    Received out;
    while ((*this)[rank].Receive([&](int from, std::span<const std::byte> frame) {
      out.emplace_back(from, std::string(reinterpret_cast<const char*>(frame.data()), frame.size()));
    })) {
    }
    return out;
  }

  std::shared_ptr<Arena> arena;
  std::vector<std::unique_ptr<Link>> links;
};

TEST(ShmLink, FramesOfEverySizeArriveInOrderFromAllRanks) {
  LinkWorld world(3);
  for (const int from : {0, 1, 2}) {
    for (const size_t size : {0u, 1u, 64u, 65u, 256u}) {
      ASSERT_TRUE(world.Send(from, 1, std::string(size, static_cast<char>('a' + from))));
      const Received received = world.Take(1);
      ASSERT_EQ(received.size(), 1u) << from << " " << size;
      EXPECT_EQ(received[0].first, from);
      EXPECT_EQ(received[0].second, std::string(size, static_cast<char>('a' + from)));
    }
  }
  EXPECT_TRUE(world.Take(0).empty());
}

TEST(ShmLink, HeadAndBodyAreOneFrame) {
  LinkWorld world(2);
  for (const size_t body : {0u, 5u, 200u}) {
    ASSERT_TRUE(world[0].TrySend(1, Bytes("head"), Bytes(std::string(body, 'b'))));
    EXPECT_EQ(world.Take(1), (Received{{0, "head" + std::string(body, 'b')}}));
  }
}

TEST(ShmLink, AFullLinkRefusesFramesAndRingsTheSenderWhenThereIsRoom) {
  LinkWorld world(2);
  size_t sent = 0;
  while (world.Send(0, 1, std::to_string(sent))) ASSERT_LT(++sent, 1000u);
  EXPECT_EQ(sent, MessageSlots::kCount);
  const uint32_t before = world.arena->doorbell(0).Rung();
  const Received received = world.Take(1);
  EXPECT_NE(world.arena->doorbell(0).Rung(), before);
  ASSERT_EQ(received.size(), sent);
  for (size_t i = 0; i < sent; ++i) EXPECT_EQ(received[i].second, std::to_string(i));
  EXPECT_TRUE(world.Send(0, 1, "more"));
  const uint32_t quiet = world.arena->doorbell(0).Rung();
  EXPECT_EQ(world.Take(1), (Received{{0, "more"}}));
  EXPECT_EQ(world.arena->doorbell(0).Rung(), quiet) << "a ring although no sender waits for room";
}

TEST(ShmLink, IdleReceiversLeaveChunksForTheOthers) {
  LinkWorld world(5, 8);
  const std::string large(200, 'x');
  for (const int stopped : {1, 2}) {
    while (world.Send(0, stopped, large)) {
    }
  }
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(world.Send(0, 3, large)) << i;
    ASSERT_EQ(world.Take(3).size(), 1u);
  }
  ASSERT_TRUE(world.Send(0, 4, "small frames need no chunk"));
  EXPECT_EQ(world.Take(4).size(), 1u);
}

TEST(ShmLink, ChunksReturnFromEveryReceiver) {
  LinkWorld world(3, 2);
  const std::string large(200, 'x');
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(world.Send(0, 1 + i % 2, large)) << i;
    EXPECT_EQ(world.Take(1 + i % 2), (Received{{0, large}}));
  }
}

TEST(ShmLink, AFrameThatIsTooLargeOrHasNoReceiverBreaksTheLink) {
  LinkWorld world(2);
  EXPECT_FALSE(world.Send(0, 1, std::string(257, 'x')));
  EXPECT_EQ(world[0].broken().code(), StatusCode::kInternal);
  EXPECT_FALSE(world.Send(1, 2, "x"));
  EXPECT_EQ(world[1].broken().code(), StatusCode::kInternal);
}

// ---- slots that no peer may write

uint64_t Word(uint32_t stamp, uint32_t chunk, uint32_t bytes) {
  return uint64_t{stamp} << 32 | uint64_t{chunk} << 20 | bytes;
}

TEST(ShmLink, InvalidSlotsBreakTheLinkAndAreNotUsed) {
  for (const uint64_t word : {Word(1, 16, 8), Word(1, 0xffe, 8), Word(1, 0, 257), Word(1, 0xfff, 65), Word(2, 0, 8),
                              Word(0x80000000, 0, 8)}) {
    LinkWorld world(3);
    world.arena->message_path(2, 1).slots->words[0] = word;
    ASSERT_TRUE(world.Send(0, 1, "good"));
    EXPECT_EQ(world.Take(1), (Received{{0, "good"}})) << "frames of other senders do not arrive";
    EXPECT_EQ(world[1].broken().code(), StatusCode::kCorrupt) << word;
    EXPECT_NE(world[1].broken().message().find("rank 2"), std::string::npos) << world[1].broken().message();
    EXPECT_FALSE(world.Send(1, 2, "to whom nothing is said any more"));
  }
}

TEST(ShmLink, AReceiverThatHasTakenMoreThanWasSentBreaksTheLink) {
  for (const uint32_t taken : {2u, 0xffffffffu}) {
    LinkWorld world(2);
    ASSERT_TRUE(world.Send(0, 1, "x"));
    *world.arena->message_path(0, 1).taken = taken;
    EXPECT_FALSE(world.Send(0, 1, "y"));
    EXPECT_EQ(world[0].broken().code(), StatusCode::kCorrupt);
  }
}

TEST(ShmLink, RandomWordsInTheAreaDoNotCrash) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    LinkWorld world(3);
    horocache::testing::SeededRandom random(seed);
    for (int i = 0; i < 30; ++i) {
      const auto from = static_cast<int>(random.Below(3));
      const auto to = static_cast<int>(random.Below(3));
      const Arena::MessagePath path = world.arena->message_path(from, to);
      const uint64_t word = random.Below(2) == 0
                                ? random.Next()
                                : Word(static_cast<uint32_t>(random.Below(10)), static_cast<uint32_t>(random.Below(20)),
                                       static_cast<uint32_t>(random.Below(300)));
      if (random.Below(4) == 0) {
        *path.taken = static_cast<uint32_t>(random.Below(12));
      } else {
        path.slots->words[random.Below(MessageSlots::kCount)] = word;
      }
      static_cast<void>(world.Send(to, from, std::string(random.Below(257), 'x')));
      world.Take(to);
    }
  }
}

// ---- several threads

TEST(ShmLink, ThreadsExchangeRandomFramesWithoutALostWakeUp) {
  constexpr int kRanks = 4;
  constexpr int kFrames = 1500;
  constexpr int64_t kLimitNs = 60 * kNsPerS;
  LinkWorld world(kRanks, 6);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&world, rank] {
      horocache::testing::SeededRandom random(static_cast<uint64_t>(rank));
      std::map<int, int> sent, received;
      std::string frame;
      int to = -1;
      int left = kFrames;
      const int64_t deadline_ns = NowNs() + kLimitNs;
      const auto sink = [&](int from, std::span<const std::byte> got) {
        int number = 0;
        std::memcpy(&number, got.data(), sizeof(number));
        ASSERT_EQ(number, received[from]++) << "from " << from << " to " << rank;
        for (const std::byte b : got.subspan(sizeof(number))) ASSERT_EQ(b, static_cast<std::byte>(number));
      };
      const auto step = [&] {
        bool moved = world[rank].Receive(sink);
        if (to < 0 && left > 0) {
          to = static_cast<int>(random.Below(kRanks));
          const int number = sent[to]++;
          frame.assign(sizeof(number) + random.Below(200), static_cast<char>(number));
          std::memcpy(frame.data(), &number, sizeof(number));
          --left;
        }
        if (to >= 0 && world[rank].TrySend(to, Bytes(frame), {})) {
          to = -1;
          moved = true;
        }
        return moved;
      };
      const auto finished = [&] { return left == 0 && to < 0; };
      Doorbell bell = world.arena->doorbell(rank);
      while (!finished()) {
        ASSERT_LT(NowNs(), deadline_ns) << "rank " << rank << " waits for room for ever";
        if (step()) continue;
        const uint32_t seen = bell.Rung();
        bell.Arm(Doorbell::kWaiter);
        if (step()) {
          bell.Disarm();
        } else {
          bell.Sleep(seen, Doorbell::kWaiter, kLimitNs);  // a lost wake-up fails the test
        }
      }
      // The other ranks go on sending: receive until all of them have left.
      world.arena->state(rank) = RankState::kLeft;
      for (int peer = 0; peer < kRanks; ++peer) world.arena->doorbell(peer).Ring();
      const auto all_left = [&] {
        for (int peer = 0; peer < kRanks; ++peer) {
          if (world.arena->state(peer) != RankState::kLeft) return false;
        }
        return true;
      };
      while (true) {
        const bool over = all_left();
        if (!world[rank].Receive(sink) && over) break;
        ASSERT_LT(NowNs(), deadline_ns);
        std::this_thread::yield();
      }
      // Each rank knows the seeds of the others, and so how many frames each of them has sent to it.
      for (int peer = 0; peer < kRanks; ++peer) {
        horocache::testing::SeededRandom check(static_cast<uint64_t>(peer));
        int expected = 0;
        for (int i = 0; i < kFrames; ++i) {
          expected += check.Below(kRanks) == static_cast<uint64_t>(rank) ? 1 : 0;
          check.Below(200);
        }
        EXPECT_EQ(received[peer], expected) << "from " << peer << " to " << rank;
      }
      EXPECT_TRUE(world[rank].broken().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- processes

TEST(ShmLink, FramesOfAKilledSenderArrive) {
  auto arena = Arena::CreateShared({.ranks = 2, .max_words = 8, .ring_bytes = 256, .data_bytes = 0});
  ASSERT_TRUE(arena.ok()) << arena.status().ToString();
  const int fd = dup((*arena)->fd());
  const pid_t child = Fork();
  if (child == 0) {
    auto attached = Arena::Attach(fd);
    if (!attached.ok()) _exit(1);
    auto link = MakeShmLink(*attached, 1);
    const std::string large(30000, 'l');
    const bool sent = link->TrySend(0, Bytes("small"), {}) && link->TrySend(0, Bytes(large), {});
    if (sent) kill(getpid(), SIGKILL);
    _exit(2);
  }
  close(fd);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
  auto link = MakeShmLink(*arena, 0);
  std::vector<size_t> sizes;
  ASSERT_TRUE(link->Receive([&](int, std::span<const std::byte> frame) { sizes.push_back(frame.size()); }));
  EXPECT_EQ(sizes, (std::vector<size_t>{5, 30000}));
}

}  // namespace
}  // namespace horocache::net
