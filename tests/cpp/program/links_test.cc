#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "program/execution.h"
#include "program/ring.h"
#include "program/shm_links.h"

namespace horocache::program {
namespace {

constexpr size_t kAreaBytes = 160 << 10;

// The links of all ranks, polled in turns on one thread.
class Host {
 public:
  explicit Host(int ranks, uint64_t last_flag = ShmLinks::kLastFlag) {
    data::SharedArea area;
    area.size = ranks;
    area.data_bytes = kAreaBytes;
    for (int rank = 0; rank < ranks; ++rank) {
      void* const memory = std::aligned_alloc(128, kAreaBytes);
      std::memset(memory, 0, kAreaBytes);
      memory_.emplace_back(static_cast<std::byte*>(memory));
      area.data.push_back(memory_.back().get());
    }
    area.ring = [this](int rank) { rung_.push_back(rank); };
    for (area.rank = 0; area.rank < ranks; ++area.rank) links_.push_back(std::make_unique<ShmLinks>(area, last_flag));
  }

  ShmLinks& links(int rank) { return *links_[static_cast<size_t>(rank)]; }
  int ranks() const { return static_cast<int>(links_.size()); }
  std::vector<int>& rung() { return rung_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  std::vector<std::unique_ptr<ShmLinks>> links_;
  std::vector<int> rung_;
};

struct LinkCase {
  Protocol protocol;
  int slots;
  int64_t slot_bytes;
  int64_t elements;
};

// Ranks begin operations as soon as they may, and are a random number of steps apart.
void RunOperations(Host* host, const Program& program, const LinkCase& one, int operations, uint64_t seed) {
  const Wirings wirings = WireUp(program);
  const Sizes sizes(one.elements, sizeof(int64_t), program.classes, program.refinement, false);
  const int64_t tile = TileElements(program, sizes, one.slot_bytes);
  const LinkPlan plan{&wirings, one.protocol, one.slots, one.slot_bytes, wirings.most_messages * TilesOf(sizes, tile)};
  struct Rank {
    std::vector<int64_t> data;
    std::unique_ptr<Execution> run;
    int done = 0;
    bool begun = false;
  };
  std::vector<Rank> ranks(static_cast<size_t>(host->ranks()));
  std::mt19937_64 random(seed);
  const auto step = [&](int number) {
    Rank& rank = ranks[static_cast<size_t>(number)];
    ShmLinks& links = host->links(number);
    if (rank.done == operations) return false;
    if (!rank.begun) {
      rank.begun = true;
      links.Begin(plan);
      rank.data.resize(static_cast<size_t>(one.elements));
      for (int64_t i = 0; i < one.elements; ++i) rank.data[static_cast<size_t>(i)] = 100 * i + number + rank.done;
    }
    if (!links.Ready()) return false;
    if (rank.run == nullptr) {
      RunSite site{&program, number, sizes, nullptr, {}, &links, tile};
      site.fold = data::FindKernels("scalar").value()->Find(DType::kInt64, wire::ReduceOp::kSum);
      site.buffers = {reinterpret_cast<std::byte*>(rank.data.data()), nullptr};
      rank.run = std::make_unique<Execution>(site);
    }
    int64_t budget = 1 + static_cast<int64_t>(random() % 2048);
    const bool moved = rank.run->Advance(&budget);
    if (!rank.run->finished()) return moved;
    const int n = host->ranks();
    for (int64_t i = 0; i < one.elements; ++i) {
      EXPECT_EQ(rank.data[static_cast<size_t>(i)], n * (100 * i + rank.done) + n * (n - 1) / 2)
          << "operation " << rank.done;
    }
    links.End();
    rank.run.reset();
    rank.begun = false;
    ++rank.done;
    return true;
  };
  for (int idle = 0; idle < 2000; ++idle) {
    if (step(static_cast<int>(random() % ranks.size()))) idle = 0;
  }
  for (const Rank& rank : ranks) EXPECT_EQ(rank.done, operations);
}

TEST(ShmLinks, CarryEveryProtocolThroughManyOperations) {
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLL, Protocol::kLL128}) {
    for (const int ranks : {2, 3, 5}) {
      for (const int slots : {1, 2, 8}) {
        Host host(ranks);
        const Program program = Ring(ranks, 2);
        for (const int64_t elements : {1, 7, 64, 333}) {
          RunOperations(&host, program, {protocol, slots, 240, elements}, 7, 11);
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
    RunOperations(&host, program,
                  {protocol, 1 + static_cast<int>(seed % 4), 120 + 120 * static_cast<int64_t>(seed % 5), 50},
                  1 + static_cast<int>(seed % 3), seed);
  }
}

TEST(ShmLinks, BeginWithTheFlagsAgainWhenThereAreNoMore) {
  Host host(2, 40);
  const Program program = Ring(2, 1);
  RunOperations(&host, program, {Protocol::kLL, 2, 16, 40}, 50, 5);
}

TEST(ShmLinks, WakeWhoeverMayWait) {
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

TEST(ShmLinks, HaveRoomForNoMoreThanThereIs) {
  Host host(2);
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLL, Protocol::kLL128}) {
    const int64_t most = host.links(0).MostSlotBytes(protocol, 3, 4);
    EXPECT_GT(most, 0);
    EXPECT_GT(host.links(0).MostSlotBytes(protocol, 3, 2), most);
    EXPECT_EQ(host.links(0).MostSlotBytes(protocol, ShmLinks::kMostEnds + 1, 1), 0);
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
