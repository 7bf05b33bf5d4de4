#include "net/failure/host_monitor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "net/memory_link.h"

namespace horocache::net {
namespace {

constexpr int64_t kSilenceNs = 4500 * kNsPerMs;
constexpr int64_t kStepNs = 10 * kNsPerMs;

// The ranks of several hosts in one thread, with a simulated clock.
struct WatchedHosts {
  explicit WatchedHosts(std::vector<int> host_of_in)
      : host_of(std::move(host_of_in)), network(Size(), 0), seen(host_of.size()) {
    std::vector<std::string> names;
    for (size_t rank = 0; rank < host_of.size(); ++rank) {
      names.push_back("rank " + std::to_string(rank) + " (host " + std::string(1, Letter(rank)) + ")");
    }
    for (int host = 0; host <= *std::ranges::max_element(host_of); ++host) {
      const auto ranks = static_cast<int>(std::ranges::count(host_of, host));
      arenas.push_back(Arena::CreateOnHeap({.ranks = ranks, .max_words = 64, .ring_bytes = 256, .data_bytes = 0}));
    }
    for (int rank = 0; rank < Size(); ++rank) {
      auto link = std::make_unique<MemoryLink>(&network, rank);
      links.push_back(link.get());
      const auto& arena = arenas[static_cast<size_t>(host_of[static_cast<size_t>(rank)])];
      watches.push_back(std::make_unique<HostMonitor>(HostMonitorConfig{rank, host_of, names, arena, kSilenceNs},
                                                      std::move(link), now_ns));
    }
  }

  int Size() const { return static_cast<int>(host_of.size()); }
  char Letter(size_t rank) const { return static_cast<char>('a' + host_of[rank]); }
  HostMonitor& operator[](int rank) { return *watches[static_cast<size_t>(rank)]; }
  // Runs all ranks but those in `still`, and adds the losses of which each rank learns to `seen`.
  void Run(int64_t for_ns, const std::vector<int>& still = {}) {
    for (const int64_t until_ns = now_ns + for_ns; now_ns < until_ns; now_ns += kStepNs) {
      for (int rank = 0; rank < Size(); ++rank) {
        if (std::ranges::find(still, rank) != still.end()) continue;
        (*this)[rank].Step(now_ns);
        for (HostMonitor::Loss loss; (*this)[rank].NextLoss(&loss);) seen[static_cast<size_t>(rank)].push_back(loss);
      }
    }
  }
  // Reports the death of `rank`, as the peer monitors of its host do, to all ranks of the host but those in `still`.
  void Die(int rank, const std::vector<int>& still = {}) {
    for (int other = 0; other < Size(); ++other) {
      const bool here = host_of[static_cast<size_t>(other)] == host_of[static_cast<size_t>(rank)];
      if (other == rank || !here || std::ranges::find(still, other) != still.end()) continue;
      (*this)[other].NoteLost(rank, {StatusCode::kPeerLost, "rank " + std::to_string(rank) + " was killed"}, now_ns);
    }
  }
  // Expects that every rank on the other hosts, except those in `still`, has learned of the loss of `lost` only.
  void ExpectKnown(int lost, const std::string& why, const std::vector<int>& still = {}) {
    for (int rank = 0; rank < Size(); ++rank) {
      if (host_of[static_cast<size_t>(rank)] == host_of[static_cast<size_t>(lost)]) continue;
      if (std::ranges::find(still, rank) != still.end()) continue;
      const auto& losses = seen[static_cast<size_t>(rank)];
      ASSERT_EQ(losses.size(), 1U) << "on rank " << rank;
      EXPECT_EQ(losses[0].rank, lost);
      EXPECT_EQ(losses[0].why.code(), StatusCode::kPeerLost);
      EXPECT_EQ(losses[0].why.message(), why);
    }
  }

  std::vector<int> host_of;
  MemoryNetwork network;
  int64_t now_ns = 100 * kNsPerS;
  std::vector<std::shared_ptr<Arena>> arenas;
  std::vector<MemoryLink*> links;
  std::vector<std::unique_ptr<HostMonitor>> watches;
  std::vector<std::vector<HostMonitor::Loss>> seen;  // by rank
};

TEST(HostMonitor, ADeathReachesEveryRankOfTheOtherHostsAtOnce) {
  for (int dead = 0; dead < 6; ++dead) {
    WatchedHosts hosts({0, 0, 1, 1, 2, 2});
    hosts.Run(kNsPerS);
    hosts.Die(dead);
    hosts.Run(3 * kStepNs, {dead});
    hosts.ExpectKnown(dead, "rank " + std::to_string(dead) + " was killed");
    hosts.Run(10 * kNsPerS, {dead});
    hosts.ExpectKnown(dead, "rank " + std::to_string(dead) + " was killed");
  }
}

TEST(HostMonitor, AStoppedRankIsNoLossWhileAnotherRankOfItsHostRuns) {
  for (int stopped = 0; stopped < 4; ++stopped) {
    WatchedHosts hosts({0, 0, 1, 1});
    hosts.Run(kNsPerS);
    hosts.Run(60 * kNsPerS, {stopped});
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == stopped) continue;
      EXPECT_EQ(hosts[rank].NotRunning(hosts.now_ns, 30 * kNsPerS), std::vector<int>{stopped}) << "on rank " << rank;
      EXPECT_TRUE(hosts[rank].NotRunning(hosts.now_ns, 90 * kNsPerS).empty()) << "on rank " << rank;
    }
    hosts.Run(4 * kNsPerS);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_TRUE(hosts[rank].NotRunning(hosts.now_ns, 0).empty()) << "on rank " << rank;
      EXPECT_TRUE(hosts.seen[static_cast<size_t>(rank)].empty()) << "on rank " << rank;
    }
  }
}

TEST(HostMonitor, ADeathBecomesKnownAlthoughTheLowestRankOfTheHostIsStopped) {
  WatchedHosts hosts({0, 0, 1, 1, 1});
  hosts.Run(kNsPerS);
  hosts.Run(20 * kStepNs, {2});  // too short for the other ranks to notice
  hosts.Die(4, {2});
  hosts.Run(kNsPerS, {2, 4});
  hosts.ExpectKnown(4, "rank 4 was killed");
}

TEST(HostMonitor, ASilentHostIsLostAndTheErrorNamesBothEnds) {
  WatchedHosts hosts({0, 0, 1});
  hosts.Run(kNsPerS);
  hosts.Run(kSilenceNs - kNsPerS, {2});
  EXPECT_TRUE(hosts.seen[0].empty() && hosts.seen[1].empty());
  hosts.Run(2 * kNsPerS, {2});
  hosts.ExpectKnown(2,
                    "rank 2 (host b) has not been heard of over MPI for 4.5 s on the host of rank 0 (host a): it, its "
                    "host or the network between the two is gone");
  // Rank 2 was stopped itself. It takes the frames that have arrived meanwhile before it judges others.
  hosts.Run(3 * kNsPerS);
  EXPECT_TRUE(hosts.seen[2].empty());
}

TEST(HostMonitor, AHostWhoseRanksHaveLeftMayBeSilent) {
  WatchedHosts hosts({0, 0, 1, 1});
  hosts.Run(kNsPerS);
  for (const int rank : {2, 3}) {
    hosts.arenas[1]->state(rank - 2).store(RankState::kLeft);
    hosts[rank].SayGoodbye();
  }
  hosts.Run(60 * kNsPerS, {2, 3});
  EXPECT_TRUE(hosts.seen[0].empty() && hosts.seen[1].empty());
}

TEST(HostMonitor, AnotherRankReportsForItsHostAfterTheLowestRankHasLeft) {
  WatchedHosts hosts({0, 0, 1, 1});
  hosts.Run(kNsPerS);
  hosts.arenas[1]->state(0).store(RankState::kLeft);
  hosts[2].SayGoodbye();
  hosts.Run(60 * kNsPerS, {2});
  EXPECT_TRUE(hosts.seen[0].empty() && hosts.seen[1].empty());
  EXPECT_TRUE(hosts[0].NotRunning(hosts.now_ns, 0).empty());
}

TEST(HostMonitor, AnInvalidFrameIsALossOfItsSender) {
  const std::vector<std::byte> short_frame(5), of_others = [] {
    std::vector<std::byte> frame(8 + 8 + 4);
    frame[4] = std::byte{1};  // one lost rank: 0, which is not on the sender's host
    frame[12] = std::byte{4};
    return frame;
  }();
  for (const auto& frame : {short_frame, of_others}) {
    WatchedHosts fresh({0, 1, 1});
    ASSERT_TRUE(fresh.links[1]->TrySend(0, frame, {}));
    fresh.Run(kStepNs);
    ASSERT_EQ(fresh.seen[0].size(), 1U);
    EXPECT_EQ(fresh.seen[0][0].why.code(), StatusCode::kCorrupt);
    EXPECT_EQ(fresh.seen[0][0].rank, 1);
  }
}

}  // namespace
}  // namespace horocache::net
