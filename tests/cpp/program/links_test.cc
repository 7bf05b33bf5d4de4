#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "program/link_runs.h"
#include "program/ring.h"

namespace horocache::program {
namespace {

TEST(ShmLinks, CarryEveryProtocolThroughManyOperations) {
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLL, Protocol::kLL128}) {
    for (const int ranks : {2, 3, 5}) {
      for (const int slots : {1, 2, 8}) {
        Host host(ranks);
        const Program program = Ring(ranks, 2);
        for (const int64_t elements : {1, 7, 64, 333}) {
          RunOperations(host.all(), program, {protocol, slots, 240, elements}, 7, 11);
        }
      }
    }
  }
}

TEST(ShmLinks, MixProtocolsInOneArea) {
  Host host(3);
  const Program program = Ring(3, 1);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const auto protocol = static_cast<Protocol>(1 + seed % 3);
    RunOperations(host.all(), program,
                  {protocol, 1 + static_cast<int>(seed % 4), 120 + 120 * static_cast<int64_t>(seed % 5), 50},
                  1 + static_cast<int>(seed % 3), seed);
  }
}

TEST(ShmLinks, ReuseTheFlagsWhenTheyAreUsedUp) {
  Host host(2, 40);
  const Program program = Ring(2, 1);
  RunOperations(host.all(), program, {Protocol::kLL, 2, 16, 40}, 50, 5);
}

TEST(ShmLinks, WakeEveryWaitingRank) {
  Host host(3);
  const Program program = Ring(3, 1);
  const Wirings wirings = WireUp(program);
  const LinkPlan plan{&wirings, Protocol::kSimple, 2, 64, 4};
  for (int rank = 0; rank < 3; ++rank) host.links(rank).Begin(plan);
  ASSERT_TRUE(host.links(0).Ready());
  std::memset(host.links(0).Claim(0), 1, 8);
  host.links(0).Push(0, 8);
  EXPECT_TRUE(host.rung().empty());
  host.links(0).Ring();
  EXPECT_EQ(host.rung(), std::vector<int>{1});
  host.rung().clear();
  ASSERT_NE(host.links(1).Peek(0, 8), nullptr);
  host.links(1).Pop(0);
  host.links(1).Ring();
  EXPECT_EQ(host.rung(), std::vector<int>{0});
  host.rung().clear();
  host.links(2).End();
  host.links(2).Ring();
  EXPECT_EQ(host.rung(), (std::vector<int>{0, 1}));
}

TEST(ShmLinks, StayWithinTheirMemory) {
  Host host(2);
  Wirings three, many;
  three.most_ends = 3;
  many.most_ends = ShmLinks::kMostEnds + 1;
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLL, Protocol::kLL128}) {
    const int64_t most = host.links(0).MostSlotBytes(protocol, three, 4);
    EXPECT_GT(most, 0);
    EXPECT_GT(host.links(0).MostSlotBytes(protocol, three, 2), most);
    EXPECT_EQ(host.links(0).MostSlotBytes(protocol, many, 1), 0);
    EXPECT_LE(EncodedBytes(protocol, most), static_cast<int64_t>(kAreaBytes) / 12);
  }
}

TEST(Protocols, KeepTheBytesOfALine) {
  alignas(128) std::byte line[128] = {};
  std::byte in[120], out[120];
  for (size_t i = 0; i < sizeof(in); ++i) in[i] = static_cast<std::byte>(i + 1);
  for (const int64_t bytes : {0, 1, 3, 4}) {
    LowLatencyLine::Write(line, in, bytes, 7);
    EXPECT_FALSE(LowLatencyLine::Read(line, out, bytes, 6));
    ASSERT_TRUE(LowLatencyLine::Read(line, out, bytes, 7));
    EXPECT_EQ(std::memcmp(in, out, static_cast<size_t>(bytes)), 0);
  }
  for (const int64_t bytes : {0, 1, 119, 120}) {
    LowLatency128Line::Write(line, in, bytes, 8);
    EXPECT_FALSE(LowLatency128Line::Read(line, out, bytes, 7));
    ASSERT_TRUE(LowLatency128Line::Read(line, out, bytes, 8));
    EXPECT_EQ(std::memcmp(in, out, static_cast<size_t>(bytes)), 0);
  }
}

}  // namespace
}  // namespace horocache::program
