#include "testing/inproc_channel.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/duration.h"

namespace horocache::testing {
namespace {

using Words = std::vector<uint64_t>;

TEST(InprocChannel, AndsTheSnapshotsOfARoundWhenAllArePublished) {
  InprocNetwork network({.size = 3});
  network.channel(0).Publish(0, Words{0b1110, 7}, {});
  network.channel(1).Publish(0, Words{0b0110, 3}, {});
  Words result;
  EXPECT_FALSE(network.channel(0).AndSnapshots(0, &result));
  EXPECT_TRUE(network.channel(0).HasPublished(1, 0));
  EXPECT_FALSE(network.channel(0).HasPublished(2, 0));
  network.channel(2).Publish(0, Words{0b1100, 5}, {});
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(network.channel(rank).AndSnapshots(0, &result)) << rank;
    EXPECT_EQ(result, (Words{0b0100, 1})) << rank;
  }
}

TEST(InprocChannel, KeepsARoundReadableUntilTheNextButOneIsPublished) {
  InprocNetwork network({.size = 2});
  for (int rank = 0; rank < 2; ++rank) network.channel(rank).Publish(4, Words{12}, {});
  network.channel(1).Publish(5, Words{1}, {});
  Words result;
  ASSERT_TRUE(network.channel(0).AndSnapshots(4, &result));
  EXPECT_EQ(result, Words{12});
  EXPECT_FALSE(network.channel(0).AndSnapshots(5, &result));
}

TEST(InprocChannel, AnUnsetHintIsAllOnesInTheFirstWordAndZeroBeyondTheEnd) {
  InprocNetwork network({.size = 2});
  Words result;
  network.channel(0).AndHints(&result);
  EXPECT_EQ(result, Words{~uint64_t{0}});
  network.channel(0).SetHint(Words{6, 9});
  network.channel(1).AndHints(&result);
  EXPECT_EQ(result, (Words{6, 0}));
  network.channel(1).SetHint(Words{3, 8, 1});
  network.channel(0).AndHints(&result);
  EXPECT_EQ(result, (Words{2, 8, 0}));
}

TEST(InprocChannel, DeliversFramesOfAPairInOrderAndOnlyAfterProgress) {
  InprocNetwork network({.size = 2, .seed = 5, .max_delay_ns = 1000});
  for (int i = 0; i < 50; ++i) network.channel(0).Send(1, "frame " + std::to_string(i));
  EXPECT_EQ(network.NextDeliveryNs(), kNever);
  EXPECT_TRUE(network.channel(0).Progress());
  EXPECT_FALSE(network.channel(0).Progress());
  int from = -1, received = 0;
  std::string frame;
  while (network.NextDeliveryNs() != kNever) {
    network.AdvanceTo(network.NextDeliveryNs());
    while (network.channel(1).Receive(&from, &frame)) {
      EXPECT_EQ(from, 0);
      EXPECT_EQ(frame, "frame " + std::to_string(received++));
    }
  }
  EXPECT_EQ(received, 50);
}

TEST(InprocChannel, RingsOnlyOnRequestIfWordsAreShared) {
  InprocNetwork network({.size = 2, .seed = 1, .max_delay_ns = 1000, .delay_words = false});
  network.channel(0).Publish(0, Words{1}, {});
  EXPECT_TRUE(network.channel(1).HasPublished(0, 0));
  EXPECT_EQ(network.NextDeliveryNs(), kNever);
  EXPECT_FALSE(network.TakeRung(1));
  network.channel(0).Ring(1);
  network.AdvanceTo(1000);
  int rank = -1;
  ASSERT_TRUE(network.NextRung(&rank));
  EXPECT_EQ(rank, 1);
  EXPECT_FALSE(network.NextRung(&rank));
}

TEST(InprocChannel, WakesTheReaderWhenWordsThatTravelArrive) {
  InprocNetwork network({.size = 3, .seed = 2, .max_delay_ns = 1000, .delay_words = true});
  network.channel(0).Publish(0, Words{1}, {});
  EXPECT_TRUE(network.channel(0).HasPublished(0, 0));
  network.AdvanceTo(1000);
  EXPECT_TRUE(network.channel(1).HasPublished(0, 0));
  EXPECT_TRUE(network.TakeRung(1));
  EXPECT_TRUE(network.TakeRung(2));
  EXPECT_FALSE(network.TakeRung(2));
  EXPECT_FALSE(network.TakeRung(0));
}

TEST(InprocChannel, ARingNeverOvertakesTheWordsOfItsSender) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    InprocNetwork network({.size = 2, .seed = seed, .max_delay_ns = 100, .delay_words = true});
    network.channel(0).SetHint(Words{0});
    network.channel(0).Publish(0, Words{7}, {});
    network.channel(0).Ring(1);
    while (network.NextDeliveryNs() != kNever) network.AdvanceTo(network.NextDeliveryNs());
    Words result;
    network.channel(1).AndHints(&result);
    EXPECT_EQ(result, Words{0}) << "seed " << seed;
    EXPECT_TRUE(network.channel(1).HasPublished(0, 0)) << "seed " << seed;
  }
}

TEST(InprocChannel, DropsFramesOfADeadRank) {
  InprocNetwork network({.size = 2, .seed = 3, .max_delay_ns = 1000});
  network.channel(0).Send(1, "last words");
  network.channel(0).Progress();
  network.channel(0).Publish(0, Words{1}, {});
  network.Kill(0);
  network.AdvanceTo(10000);
  int from = -1;
  std::string frame;
  EXPECT_FALSE(network.channel(1).Receive(&from, &frame));
  EXPECT_FALSE(network.channel(1).HasPublished(0, 0));
}

TEST(InprocChannel, TheSameSeedGivesTheSameSchedule) {
  const auto schedule = [](uint64_t seed) {
    InprocNetwork network({.size = 4, .seed = seed, .max_delay_ns = 100000});
    for (int from = 0; from < 4; ++from) {
      for (int to = 0; to < 4; ++to) network.channel(from).Ring(to);
    }
    std::vector<int64_t> times;
    for (; network.NextDeliveryNs() != kNever; network.AdvanceTo(times.back())) {
      times.push_back(network.NextDeliveryNs());
    }
    return times;
  };
  EXPECT_EQ(schedule(11), schedule(11));
  EXPECT_NE(schedule(11), schedule(12));
}

TEST(InprocChannel, APayloadTravelsBehindTheWordsAndIsNotPartOfTheAnd) {
  InprocNetwork network({.size = 2, .max_delay_ns = 100, .delay_words = false});
  Words out, words, payload;
  network.channel(0).Publish(0, Words{6, 7}, Words{1, 2});
  network.channel(1).Publish(0, Words{3, 1}, {});
  ASSERT_TRUE(network.channel(1).AndSnapshots(0, &out));
  EXPECT_EQ(out, (Words{2, 1}));
  EXPECT_TRUE(network.channel(1).SharesBitvector(0));
  ASSERT_TRUE(network.channel(1).ReadPublished(0, 0, &words, &payload));
  EXPECT_EQ(words, (Words{6, 7}));
  EXPECT_EQ(payload, (Words{1, 2}));
  EXPECT_EQ(network.bytes(), 48u);
}

TEST(InprocChannel, CountsSharedWordsOnceAndTravellingWordsForEachReader) {
  InprocNetwork shared({.size = 5});
  shared.channel(0).Publish(0, Words{1, 2}, {});
  EXPECT_EQ(shared.messages(), 1u);
  EXPECT_EQ(shared.bytes(), 16u);
  InprocNetwork link({.size = 5, .max_delay_ns = 1});
  link.channel(0).Publish(0, Words{1, 2}, {});
  EXPECT_EQ(link.messages(), 4u);
  EXPECT_EQ(link.bytes(), 64u);
}

}  // namespace
}  // namespace horocache::testing
