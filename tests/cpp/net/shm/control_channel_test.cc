#include "net/shm/control_channel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "control/bitvector.h"

namespace horocache::net {
namespace {

using Words = std::vector<uint64_t>;
constexpr int64_t kDeadlineNs = 100 * kNsPerS;

struct World {
  explicit World(int ranks, int64_t ring_bytes = 256, int64_t max_words = 64)
      : arena(
            Arena::CreateOnHeap({.ranks = ranks, .max_words = max_words, .ring_bytes = ring_bytes, .data_bytes = 0})) {
    for (int r = 0; r < ranks; ++r) channels.push_back(MakeShmChannel(arena, r));
  }
  RuntimeChannel& operator[](int rank) { return *channels[static_cast<size_t>(rank)]; }

  std::shared_ptr<Arena> arena;
  std::vector<std::unique_ptr<RuntimeChannel>> channels;
};

TEST(ShmChannelWords, ARoundIsTheAndOfAllSnapshots) {
  World world(3);
  Words out;
  world[0].Publish(0, Words{7, 6}, {});
  world[1].Publish(0, Words{3, 4}, {});
  EXPECT_FALSE(world[0].AndSnapshots(0, &out));
  EXPECT_TRUE(world[2].HasPublished(1, 0));
  EXPECT_FALSE(world[1].HasPublished(2, 0));
  world[2].Publish(0, Words{6, 12}, {});
  for (int r = 0; r < 3; ++r) {
    ASSERT_TRUE(world[r].AndSnapshots(0, &out));
    EXPECT_EQ(out, (Words{2, 4}));
  }
}

TEST(ShmChannelWords, FreshMemoryDoesNotPublishRoundZero) {
  World world(2);
  EXPECT_FALSE(world[0].HasPublished(1, 0));
  EXPECT_FALSE(world[0].HasPublished(1, 1));
}

TEST(ShmChannelWords, AResultStaysTheSameWhenAPeerIsTwoRoundsAhead) {
  World world(2);
  Words out;
  for (int r = 0; r < 2; ++r) world[r].Publish(4, Words{5}, {});
  ASSERT_TRUE(world[0].AndSnapshots(4, &out));
  ASSERT_TRUE(world[1].AndSnapshots(4, &out));
  for (int r = 0; r < 2; ++r) world[r].Publish(5, Words{1}, {});
  ASSERT_TRUE(world[1].AndSnapshots(5, &out));
  world[1].Publish(6, Words{0, 1}, {});
  ASSERT_TRUE(world[0].AndSnapshots(4, &out));
  EXPECT_EQ(out, Words{5});
  ASSERT_TRUE(world[0].AndSnapshots(5, &out));
  EXPECT_EQ(out, Words{1});
  EXPECT_TRUE(world[0].HasPublished(1, 4));
  EXPECT_TRUE(world[0].HasPublished(1, 6));
  EXPECT_TRUE(world[0].broken().ok());
}

TEST(ShmChannelWords, AMissedRoundIsAnErrorAndNotAnEndlessWait) {
  World world(2);
  Words out;
  world[0].Publish(1, Words{1}, {});
  world[1].Publish(1, Words{1}, {});
  world[1].Publish(3, Words{1}, {});
  EXPECT_FALSE(world[0].AndSnapshots(1, &out));
  EXPECT_EQ(world[0].broken().code(), StatusCode::kInternal);
}

TEST(ShmChannelWords, AShorterSnapshotCountsAsZeroBeyondItsEnd) {
  World world(2);
  Words out;
  world[0].Publish(0, Words{~0ull, ~0ull, ~0ull}, {});
  world[1].Publish(0, Words{~0ull}, {});
  ASSERT_TRUE(world[1].AndSnapshots(0, &out));
  EXPECT_EQ(out, (Words{~0ull, 0, 0}));
}

TEST(ShmChannelWords, TooManyWordsBreakTheChannelAndNameTheKnob) {
  World world(2, 256, 4);
  world[1].Publish(0, Words(5), {});
  EXPECT_EQ(world[1].broken().code(), StatusCode::kInternal);
  EXPECT_NE(world[1].broken().message().find("HOROCACHE_CACHE_CAPACITY"), std::string::npos);
  EXPECT_FALSE(world[0].HasPublished(1, 0));
}

TEST(ShmChannelWords, AnUnsetHintIsAllOnesInTheFirstWord) {
  World world(3);
  Words out;
  world[0].SetHint(Words{6, 7});
  world[0].AndHints(&out);
  EXPECT_EQ(out, (Words{6, 0}));
  world[1].SetHint(Words{3, 5, 1});
  world[2].AndHints(&out);
  EXPECT_EQ(out, (Words{2, 0, 0}));
  world[2].SetHint(Words{2, 4, 1});
  world[0].AndHints(&out);
  EXPECT_EQ(out, (Words{2, 4, 0}));
  world[0].SetHint(Words{});
  world[0].AndHints(&out);
  EXPECT_EQ(out, (Words{0, 0, 0}));
}

TEST(ShmChannelWords, AForgedWordCountIsBounded) {
  World world(2);
  Words out;
  world[0].SetHint(Words{1});
  world[1].SetHint(Words{1});
  *world.arena->hint(1).count = ~0ull;
  world[0].AndHints(&out);
  EXPECT_EQ(out.size(), 64u);
}

TEST(ShmChannelWords, APayloadTravelsBehindTheWordsAndIsNotPartOfTheAnd) {
  World world(2);
  Words out, words, payload;
  world[0].Publish(0, Words{7, 6}, Words{0, 1});
  EXPECT_FALSE(world[1].ReadPublished(1, 0, &words, &payload));
  world[1].Publish(0, Words{3, 5, 1}, Words{42});
  for (int r = 0; r < 2; ++r) {
    ASSERT_TRUE(world[r].AndSnapshots(0, &out));
    EXPECT_EQ(out, (Words{3, 4, 0}));
    ASSERT_TRUE(world[r].ReadPublished(0, 0, &words, &payload));
    EXPECT_EQ(words, (Words{7, 6}));
    EXPECT_EQ(payload, (Words{0, 1}));
    ASSERT_TRUE(world[r].ReadPublished(1, 0, &words, &payload));
    EXPECT_EQ(words, (Words{3, 5, 1}));
    EXPECT_EQ(payload, Words{42});
  }
  world[0].Publish(1, Words{7}, {});
  EXPECT_FALSE(world[1].ReadPublished(0, 2, &words, &payload));
  ASSERT_TRUE(world[1].ReadPublished(0, 1, &words, &payload));
  EXPECT_EQ(payload, Words{});
}

TEST(ShmChannelWords, TheLongestPayloadFitsBehindTheMostWords) {
  World world(2, 256, 4);
  Words words, payload, longest(control::kMaxPayloadWords, 9);
  for (int r = 0; r < 2; ++r) world[r].Publish(0, Words(4, 1), longest);
  for (int r = 0; r < 2; ++r) world[r].Publish(1, Words(4, 2), {});
  ASSERT_TRUE(world[0].ReadPublished(1, 0, &words, &payload));
  EXPECT_EQ(words, Words(4, 1));
  EXPECT_EQ(payload, longest);
  ASSERT_TRUE(world[1].ReadPublished(0, 1, &words, &payload));
  EXPECT_EQ(words, Words(4, 2));
}

TEST(ShmChannelWords, ForgedLengthsAreBounded) {
  World world(2, 256, 4);
  Words words, payload;
  world[1].Publish(0, Words{1}, {});
  *world.arena->snapshot(1, 0).count = ~0ull;
  ASSERT_TRUE(world[0].ReadPublished(1, 0, &words, &payload));
  EXPECT_EQ(words.size(), 4u);
  EXPECT_EQ(payload.size(), control::kMaxPayloadWords);
}

TEST(ShmChannelWords, OneRankAloneAgreesWithItself) {
  World world(1);
  Words out;
  int from = -1;
  std::string frame;
  world[0].SetHint(Words{9});
  world[0].AndHints(&out);
  EXPECT_EQ(out, Words{9});
  world[0].Publish(0, Words{9, 8}, {});
  ASSERT_TRUE(world[0].AndSnapshots(0, &out));
  EXPECT_EQ(out, (Words{9, 8}));
  EXPECT_FALSE(world[0].Receive(&from, &frame));
  world[0].Send(0, "to myself");
  ASSERT_TRUE(world[0].Receive(&from, &frame));
  EXPECT_EQ(from, 0);
  EXPECT_EQ(frame, "to myself");
}

// Sleeps on the doorbell, as a progress thread does, until `ready` returns true. False after the deadline.
template <typename Ready>
bool WaitFor(Arena& arena, int rank, Ready ready) {
  Doorbell bell = arena.doorbell(rank);
  const int64_t deadline = NowNs() + kDeadlineNs;
  while (NowNs() < deadline) {
    const uint32_t seen = bell.Rung();
    if (ready()) return true;
    bell.Arm(Doorbell::kBackground);
    if (ready()) {
      bell.Disarm(Doorbell::kBackground);
      return true;
    }
    bell.Sleep(seen, Doorbell::kBackground, 100 * kNsPerMs);
  }
  return false;
}

TEST(ShmChannelWords, EightRanksExchangeRoundsInThreads) {
  constexpr int kRanks = 8;
  constexpr uint64_t kRounds = 1500;
  World world(kRanks);
  const auto word = [](int rank, uint64_t round, size_t i) {
    std::mt19937_64 random(round * 64 + i);
    return random() | (uint64_t{1} << (rank + 8 * (round % 4)));
  };
  std::vector<std::string> failures(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      Words mine(3), out, expected(3), hint;
      for (uint64_t k = 0; k < kRounds; ++k) {
        for (size_t i = 0; i < 3; ++i) mine[i] = word(r, k, i);
        world[r].SetHint(mine);
        world[r].AndHints(&hint);
        world[r].Publish(k, mine, {});
        for (int p = 0; p < kRanks; ++p) {
          if (p != r) world[r].Ring(p);
        }
        if (!WaitFor(*world.arena, r, [&] { return world[r].AndSnapshots(k, &out); })) {
          failures[static_cast<size_t>(r)] = "round " + std::to_string(k) + " did not end";
          return;
        }
        for (size_t i = 0; i < 3; ++i) {
          expected[i] = ~0ull;
          for (int p = 0; p < kRanks; ++p) expected[i] &= word(p, k, i);
        }
        if (out != expected) {
          failures[static_cast<size_t>(r)] = "round " + std::to_string(k) + " has wrong words";
          return;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(failures[static_cast<size_t>(r)], "") << "rank " << r;
}

TEST(ShmChannelFrames, KeepTheirOrderAndTheirBoundaries) {
  World world(2, 64);
  for (int i = 0; i < 20; ++i) world[1].Send(0, std::string(static_cast<size_t>(i), static_cast<char>('a' + i)));
  int from = -1;
  std::string frame;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(world[0].Receive(&from, &frame) || (world[1].Progress() && world[0].Receive(&from, &frame))) << i;
    EXPECT_EQ(from, 1);
    EXPECT_EQ(frame, std::string(static_cast<size_t>(i), static_cast<char>('a' + i)));
    world[1].Progress();
  }
  EXPECT_FALSE(world[0].Receive(&from, &frame));
  EXPECT_FALSE(world[1].Progress());
}

TEST(ShmChannelFrames, FramesOfManyRanksAreTakenInTurns) {
  World world(4, 1024);
  for (int r = 1; r < 4; ++r) {
    for (int i = 0; i < 2; ++i) world[r].Send(0, "x");
  }
  std::vector<int> order;
  int from = -1;
  std::string frame;
  while (world[0].Receive(&from, &frame)) order.push_back(from);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 1, 2, 3}));
}

TEST(ShmChannelFrames, RingTheReceiverAndTheBlockedSender) {
  World world(2, 64);
  const uint32_t receiver = world.arena->doorbell(0).Rung();
  world[1].Send(0, std::string(200, 'x'));
  EXPECT_NE(world.arena->doorbell(0).Rung(), receiver);
  const uint32_t sender = world.arena->doorbell(1).Rung();
  EXPECT_TRUE(world[0].Progress());
  EXPECT_NE(world.arena->doorbell(1).Rung(), sender) << "there is room, and the sender was not rung";
}

TEST(ShmChannelFrames, BetweenTwoWorkersGoThroughRankZero) {
  World world(4, 64);
  const std::string text(1000, 'q');
  world[2].Send(3, text);
  world[1].Send(3, "second");
  std::map<int, std::string> got;
  for (int turn = 0; turn < 1000 && got.size() < 2; ++turn) {
    for (int r = 0; r < 3; ++r) world[r].Progress();
    int from = -1;
    std::string frame;
    if (world[3].Receive(&from, &frame)) got[from] = frame;
  }
  EXPECT_EQ(got[2], text);
  EXPECT_EQ(got[1], "second");
}

// Every rank sends every other one frames of seeded sizes through small rings; all must arrive in order.
TEST(ShmChannelFrames, BigFramesPassThroughSmallRingsInThreads) {
  constexpr int kRanks = 4;
  constexpr int kFrames = 40;
  World world(kRanks, 192);
  const auto text = [](int from, int to, int i) {
    std::mt19937 random(static_cast<uint32_t>(from * 10000 + to * 1000 + i));
    std::string frame(random() % 8 == 0 ? random() % 20000 : random() % 300, '\0');
    for (char& c : frame) c = static_cast<char>(random());
    return frame;
  };
  std::vector<std::string> failures(kRanks);
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      std::vector<int> next(kRanks, 0);
      int left = (kRanks - 1) * kFrames;
      for (int i = 0; i < kFrames; ++i) {
        for (int to = 0; to < kRanks; ++to) {
          if (to != r) world[r].Send(to, text(r, to, i));
        }
      }
      int from = -1;
      std::string frame;
      const bool done = WaitFor(*world.arena, r, [&] {
        while (world[r].Progress() || world[r].Receive(&from, &frame)) {
          for (; from >= 0; from = -1, world[r].Receive(&from, &frame)) {
            if (frame != text(from, r, next[static_cast<size_t>(from)]++)) failures[static_cast<size_t>(r)] = "wrong";
            if (--left == 0 && finished.fetch_add(1) == kRanks - 1) {
              for (int p = 0; p < kRanks; ++p) world[r].Ring(p);
            }
          }
        }
        return finished == kRanks;  // a rank that is done still calls Progress for its peers
      });
      if (!done) failures[static_cast<size_t>(r)] = std::to_string(left) + " frames did not arrive";
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(failures[static_cast<size_t>(r)], "") << "rank " << r;
}

TEST(ShmChannelFrames, AnInvalidLengthBreaksTheChannel) {
  World world(2, 64);
  const Arena::Ring ring = world.arena->ring(1, 0);
  const uint32_t header[3] = {0xfffffff0u, 1, 0};
  std::memcpy(ring.bytes, header, sizeof(header));
  *ring.head = sizeof(header);
  int from = -1;
  std::string frame;
  EXPECT_FALSE(world[0].Receive(&from, &frame));
  EXPECT_EQ(world[0].broken().code(), StatusCode::kCorrupt);
  EXPECT_NE(world[0].broken().message().find("4294967280"), std::string::npos);
  EXPECT_NE(world[0].broken().message().find("rank 1"), std::string::npos);
  EXPECT_FALSE(world[0].Progress());
}

TEST(ShmChannelFrames, AForgedSenderOrPositionBreaksTheChannel) {
  {
    World world(3, 64);
    const Arena::Ring ring = world.arena->ring(1, 0);
    const uint32_t header[3] = {0, 2, 0};
    std::memcpy(ring.bytes, header, sizeof(header));
    *ring.head = sizeof(header);
    EXPECT_TRUE(world[0].Progress());
    EXPECT_EQ(world[0].broken().code(), StatusCode::kCorrupt);
  }
  World world(2, 64);
  *world.arena->ring(1, 0).head = 1000;
  EXPECT_FALSE(world[0].Progress());
  EXPECT_EQ(world[0].broken().code(), StatusCode::kCorrupt);
  World other(2, 64);
  *other.arena->ring(0, 1).tail = 1000;
  other[0].Send(1, "x");
  EXPECT_EQ(other[0].broken().code(), StatusCode::kCorrupt);
}

TEST(ShmChannelFrames, AFrameWithoutAReceiverIsRefused) {
  World world(2);
  world[0].Send(2, "x");
  EXPECT_EQ(world[0].broken().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace horocache::net
