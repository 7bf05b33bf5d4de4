#include "net/hosts/control_channel.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "control/test_network.h"
#include "net/memory_link.h"
#include "net/shm/arena.h"
#include "net/shm/control_channel.h"

namespace horocache::net {
namespace {

// The ranks of several hosts in one process: one arena per host, and links in memory between the leaders.
struct Hosts {
  explicit Hosts(std::vector<int> host_of_in, uint64_t seed = 0)
      : host_of(std::move(host_of_in)),
        network(std::make_unique<MemoryNetwork>(1 + *std::ranges::max_element(host_of), seed)) {
    network->max_frame_bytes = 64;
    network->must_poll = true;
    std::vector<int> count(static_cast<size_t>(network->size));
    for (const int host : host_of) ++count[static_cast<size_t>(host)];
    for (const int ranks : count) {
      arenas.push_back(Arena::CreateOnHeap({.ranks = ranks, .max_words = 64, .ring_bytes = 256, .data_bytes = 0}));
    }
    std::vector<int> next(count.size());
    for (size_t rank = 0; rank < host_of.size(); ++rank) {
      const int host = host_of[rank], at = next[static_cast<size_t>(host)]++;
      std::unique_ptr<MemoryLink> link;
      if (at == 0) link = std::make_unique<MemoryLink>(network.get(), host);
      links.push_back(link.get());
      channels.push_back(MakeHostsChannel({static_cast<int>(rank), host_of},
                                          MakeShmChannel(arenas[static_cast<size_t>(host)], at), std::move(link)));
    }
  }
  RuntimeChannel& operator[](int rank) { return *channels[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(host_of.size()); }
  // Sets the longest delay of a frame, in calls of Receive by any leader.
  void Delay(int looks) {
    network->max_delay_ns = looks;
    network->ns_per_look = 1;
  }
  void Progress(int times = 200) {
    for (int i = 0; i < times; ++i) {
      for (auto& channel : channels) channel->Progress();
    }
  }

  std::vector<int> host_of;
  std::unique_ptr<MemoryNetwork> network;
  std::vector<std::shared_ptr<Arena>> arenas;
  std::vector<MemoryLink*> links;  // by rank; null for all ranks but the leaders
  std::vector<std::unique_ptr<RuntimeChannel>> channels;
};

TEST(HostsChannel, FramesReachEveryRankInTheOrderOfSending) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    Hosts hosts({0, 0, 1, 2, 2, 2, 1}, seed);
    hosts.Delay(9);
    constexpr int kFrames = 6;
    std::mt19937_64 random(seed);
    std::map<std::pair<int, int>, std::vector<std::string>> sent, received;
    for (int i = 0; i < kFrames; ++i) {
      for (int from = 0; from < hosts.size(); ++from) {
        for (int to = 0; to < hosts.size(); ++to) {
          const std::string frame(random() % 500, static_cast<char>('a' + random() % 26));
          sent[{from, to}].push_back(frame);
          hosts[from].Send(to, frame);
        }
      }
    }
    size_t count = 0;
    for (int turn = 0; turn < 20000 && count < kFrames * 49; ++turn) {
      for (int to = 0; to < hosts.size(); ++to) {
        hosts[to].Progress();
        int from = -1;
        std::string frame;
        while (hosts[to].Receive(&from, &frame)) {
          received[{from, to}].push_back(frame);
          ++count;
        }
      }
    }
    ASSERT_EQ(received, sent) << "seed " << seed;
    for (int rank = 0; rank < hosts.size(); ++rank) EXPECT_TRUE(hosts[rank].broken().ok());
  }
}

TEST(HostsChannel, WordsAreSharedInsideAHostOnly) {
  Hosts hosts({0, 0, 1});
  hosts[1].Publish(0, std::vector<uint64_t>{5, 6}, {});
  hosts[2].Publish(0, std::vector<uint64_t>{7}, {});
  std::vector<uint64_t> words;
  EXPECT_TRUE(hosts[0].SharesBitvector(1));
  EXPECT_FALSE(hosts[0].SharesBitvector(2));
  EXPECT_TRUE(hosts[0].ReadPublished(1, 0, &words, nullptr));
  EXPECT_EQ(words, (std::vector<uint64_t>{5, 6}));
  EXPECT_FALSE(hosts[0].ReadPublished(1, 1, &words, nullptr));
  EXPECT_FALSE(hosts[0].ReadPublished(2, 0, &words, nullptr));
}

TEST(HostsChannel, OnlyLeadersMustPollAndSayGoodbye) {
  Hosts hosts({0, 0, 1});
  EXPECT_TRUE(hosts[0].must_poll());
  EXPECT_FALSE(hosts[1].must_poll());
  for (int rank = 0; rank < 3; ++rank) hosts[rank].SayGoodbye(false);
  EXPECT_TRUE(hosts.links[0]->said_goodbye);
  EXPECT_TRUE(hosts.links[2]->said_goodbye);
}

TEST(HostsChannel, ALossThatOneRankSeesReachesAllRanks) {
  for (const int witness : {0, 1, 3, 4}) {
    Hosts hosts({0, 0, 1, 1, 2});
    hosts[witness].NotifyLost({StatusCode::kPeerLost, "rank 9 is gone"});
    for (int i = 0; i < 50; ++i) {
      hosts.Progress(1);
      int from = -1;
      std::string frame;
      for (int rank = 0; rank < hosts.size(); ++rank) EXPECT_FALSE(hosts[rank].Receive(&from, &frame));
    }
    for (int rank = 0; rank < hosts.size(); ++rank) {
      if (rank == witness) continue;
      EXPECT_EQ(hosts[rank].broken().code(), StatusCode::kPeerLost) << "rank " << rank << ", seen by " << witness;
      EXPECT_EQ(hosts[rank].broken().message(), "rank 9 is gone");
    }
  }
}

TEST(HostsChannel, ABrokenLinkReachesTheRanksOfTheHostAndTheOtherHosts) {
  Hosts hosts({0, 0, 1, 1, 2});
  hosts.links[2]->Break({StatusCode::kPeerLost, "host 2 is silent"});
  hosts.Progress(5);
  EXPECT_EQ(hosts[2].broken().message(), "host 2 is silent");
  int from = -1;
  std::string frame;
  EXPECT_FALSE(hosts[3].Receive(&from, &frame));
  EXPECT_EQ(hosts[3].broken().message(), "host 2 is silent");
}

TEST(HostsChannel, InvalidPiecesBreakTheChannel) {
  const auto piece = [](uint32_t from, uint32_t to, uint32_t total, uint32_t offset, size_t bytes) {
    const std::array<uint32_t, 4> header = {from, to, total, offset};
    std::string text(reinterpret_cast<const char*>(header.data()), sizeof(header));
    return text + std::string(bytes, 'x');
  };
  const std::vector<std::string> bad = {"short",
                                        piece(9, 0, 4, 0, 4),            // from a rank that does not exist
                                        piece(1, 0, 4, 0, 4),            // from a rank of another host
                                        piece(2, 3, 4, 0, 4),            // to a rank of another host
                                        piece(2, 0, 4, 2, 2),            // begins in the middle
                                        piece(2, 0, 4, 0, 8),            // longer than the frame
                                        piece(2, 0, 0xffffffff, 0, 8),   // longer than any frame
                                        piece(2, 0xffffffff, 4, 0, 4)};  // a loss that does not decode
  for (size_t i = 0; i < bad.size(); ++i) {
    Hosts hosts({0, 0, 1, 1});
    hosts.links[2]->TrySend(0, std::as_bytes(std::span(bad[i])), {});
    hosts[0].Progress();
    EXPECT_EQ(hosts[0].broken().code(), StatusCode::kCorrupt) << "case " << i;
    EXPECT_NE(hosts[0].broken().message().find("rank 0 got from "), std::string::npos) << hosts[0].broken().message();
  }
}

// A job whose ranks step again and again, like ranks that must poll.
class HostsJob : public control::TestJob {
 public:
  HostsJob(const std::vector<int>& host_of, const std::string& strategy, uint64_t seed)
      : TestJob(static_cast<int>(host_of.size()), {},
                {.strategy = strategy, .radix = 2, .host_of = strategy == "leaders" ? host_of : std::vector<int>()}),
        hosts(host_of, seed) {
    hosts.Delay(9);
    hub.expect_equal_hashes = false;
    for (size_t rank = 0; rank < host_of.size(); ++rank) channels[rank] = std::move(hosts.channels[rank]);
  }
  void Poll(int times) {
    for (int i = 0; i < times; ++i, now += 100'000) {
      for (int rank = 0; rank < size(); ++rank) {
        Touch(rank);
        StepRank(rank);
      }
    }
  }
  Hosts hosts;
};

TEST(HostsChannel, EveryStrategyWithFramesAgrees) {
  for (const std::string strategy : {"leaders", "coordinator", "tree"}) {
    for (const std::vector<int>& host_of :
         std::vector<std::vector<int>>{{0, 0, 1, 1}, {0, 1, 2}, {0, 1, 0, 1, 2, 2, 2}}) {
      HostsJob job(host_of, strategy, 7);
      job.WaitAll();
      for (int step = 0; step < 4; ++step) {
        const auto a = job.SubmitAll(control::Tensor("a"));
        const auto b = job.SubmitAll(control::Tensor("b"));
        job.WaitAll();
        job.Poll(300);
        EXPECT_TRUE(job.Done(a) && job.Done(b)) << strategy << ", step " << step << ", " << host_of.size() << " ranks";
      }
      EXPECT_GT(job[0].counters().hits, 0u);
      job.ExpectEqualCaches();
    }
  }
}

TEST(HostsChannel, RanksThatDoNotRunAreNamedByTheirNumberInTheSet) {
  MemoryNetwork network(4, 0);
  auto arena = Arena::CreateOnHeap({.ranks = 3, .max_words = 64, .ring_bytes = 256, .data_bytes = 0});
  const int64_t start_ns = 100 * kNsPerS, now_ns = start_ns + 2 * kNsPerS;
  HostMonitor watch({.rank = 3, .host_of = {0, 1, 1, 1}, .names = {"0", "1", "2", "3"}, .arena = arena},
                    std::make_unique<MemoryLink>(&network, 3), start_ns);
  watch.Step(now_ns);
  EXPECT_EQ(watch.NotRunning(now_ns, kNsPerS), (std::vector<int>{1, 2}));
  auto local = Arena::CreateOnHeap({.ranks = 2, .max_words = 64, .ring_bytes = 256, .data_bytes = 0});
  const auto channel = MakeHostsChannel({.rank = 2, .host_of = {0, 1, 1}, .ranks = {0, 2, 3}, .host_monitor = &watch},
                                        MakeShmChannel(local, 1), nullptr);
  EXPECT_EQ(channel->NotRunning(now_ns, kNsPerS), std::vector<int>{1});
}

}  // namespace
}  // namespace horocache::net
