#include "moe/window.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/memory.h"

namespace horocache::moe {
namespace {

using Act = Exchange::Act;

constexpr int kWidth = 3;  // numbers in a row
constexpr std::array<int64_t, 2> kRowBytes = {kWidth * sizeof(int64_t), kWidth * sizeof(int64_t)};

// The windows of all ranks, in one process.
class Windows {
 public:
  Windows(std::vector<bool> hosts, uint32_t depth, int rows) {
    Geometry geometry{std::move(hosts), depth, rows * kRowBytes[0], rows * kRowBytes[1]};
    std::vector<std::string> names;
    for (int rank = 0; rank < geometry.ranks(); ++rank) {
      const auto bytes = static_cast<size_t>(BlockBytes(geometry, rank));
      std::shared_ptr<std::byte> block(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)), &std::free);
      std::memset(block.get(), 0, bytes);
      blocks_.push_back(block);
      names.push_back("rank " + std::to_string(rank));
    }
    Window::Blocks blocks;
    for (const auto& block : blocks_) {
      blocks.base.push_back(block.get());
      regions_.push_back(std::make_shared<Region>());
      blocks.regions.push_back({regions_.back()->memory.data(), regions_.back()->memory.size()});
    }
    for (int rank = 0; rank < geometry.ranks(); ++rank) {
      blocks.allocate = [this, region = regions_[static_cast<size_t>(rank)]](size_t bytes) {
        return Allocate(region, bytes);
      };
      counters_.push_back(std::make_shared<ExchangeCounters>());
      all_.push_back(std::make_unique<Window>(rank, geometry, blocks, names, /*spin_ns=*/0, counters_.back()));
    }
  }
  Window& operator[](int rank) { return *all_[static_cast<size_t>(rank)]; }
  // How many pieces were asked for, of all ranks; those after the first `most` are not there.
  int spilled() const { return spilled_; }
  void LimitSpills(int most) { most_spills_ = most; }
  // Zeroes the memory of a rank, as the end of its job does.
  void FreeBlock(int rank) {
    std::memset(blocks_[static_cast<size_t>(rank)].get(), 0,
                static_cast<size_t>(BlockBytes(all_[0]->geometry(), rank)));
  }
  const ExchangeCounters& counters(int rank) const { return *counters_[static_cast<size_t>(rank)]; }
  int ranks() const { return static_cast<int>(all_.size()); }
  // Runs `body` for each rank in a thread of its own.
  void Run(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks(); ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }

 private:
  // Memory that is given once.
  struct Region {
    std::vector<std::byte> memory = std::vector<std::byte>(8 << 20);
    size_t used = 0;
  };
  std::shared_ptr<std::byte> Allocate(const std::shared_ptr<Region>& region, size_t bytes) {
    if (spilled_.fetch_add(1) >= most_spills_ || region->used + bytes > region->memory.size()) return nullptr;
    std::byte* const at = region->memory.data() + region->used;
    region->used += RoundUp(bytes, kCacheLine);
    return {region, at};
  }

  std::vector<std::shared_ptr<Region>> regions_;
  std::atomic<int> spilled_{0};
  int most_spills_ = 1'000'000;
  std::vector<std::shared_ptr<ExchangeCounters>> counters_;
  std::vector<std::shared_ptr<std::byte>> blocks_;
  std::vector<std::unique_ptr<Window>> all_;
};

int64_t Pattern(int from, int to, uint32_t round, size_t at) {
  return ((int64_t{from} * 64 + to) * 100'000 + round) * 1'000 + static_cast<int64_t>(at);
}

int64_t* Numbers(std::span<std::byte> memory) { return reinterpret_cast<int64_t*>(memory.data()); }
size_t Count(std::span<std::byte> memory) { return memory.size() / sizeof(int64_t); }

// The events of one round of a rank.
struct Round {
  Status status;
  std::vector<int> taken, served;
};

// A host returns each number plus one. Every number is checked: it names both ranks, the round and its position.
Round RunRound(Window* window, const Plan& plan, uint32_t tag = 0, const std::function<void()>& work = nullptr) {
  Round done;
  done.status = window->Enter(plan, tag, kRowBytes, nullptr);
  if (!done.status.ok()) return done;
  const int own = window->exchange().rank();
  const uint32_t round = window->exchange().round();
  for (;;) {
    StatusOr<Window::Step> step = window->Next(nullptr);
    if (!step.ok()) {
      done.status = step.status();
      return done;
    }
    switch (step->act) {
      case Act::kSend:
        for (size_t i = 0; i < Count(step->batch); ++i) Numbers(step->batch)[i] = Pattern(own, step->peer, round, i);
        break;
      case Act::kServe:
        if (work) work();
        for (size_t i = 0; i < Count(step->batch); ++i) {
          EXPECT_EQ(Numbers(step->batch)[i], Pattern(step->peer, own, round, i)) << "on rank " << own;
          Numbers(step->result)[i] = Numbers(step->batch)[i] + 1;
        }
        done.served.push_back(step->peer);
        break;
      case Act::kTake:
        for (size_t i = 0; i < Count(step->result); ++i)
          EXPECT_EQ(Numbers(step->result)[i], Pattern(own, step->peer, round, i) + 1) << "on rank " << own;
        done.taken.push_back(step->peer);
        break;
      default:
        return done;
    }
  }
}

Plan Lossless(std::vector<int32_t> rows) {
  const int all = static_cast<int>(rows.size()) - 1;
  return {.rows = std::move(rows), .epsilon = all};
}

TEST(Window, EveryBatchComesBackFromItsHostInManyRounds) {
  Windows windows({true, true, false, true}, 2, 8);
  windows.Run([&](int rank) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int i = 0; i < 300; ++i) {
      std::vector<int32_t> rows(4);
      size_t some = 0;
      for (int host : {0, 1, 3}) some += (rows[static_cast<size_t>(host)] = static_cast<int32_t>(random() % 9)) > 0;
      const Round round = RunRound(&windows[rank], Lossless(rows));
      ASSERT_TRUE(round.status.ok()) << round.status.message();
      ASSERT_EQ(round.taken.size(), some);
    }
  });
  for (int rank = 0; rank < 4; ++rank) {
    const ExchangeCounters& counters = windows.counters(rank);
    EXPECT_EQ(counters.rounds, 300u);
    for (Outcome drop : {Outcome::kOwnTimeout, Outcome::kHostLeft, Outcome::kRingFull, Outcome::kLostRank})
      EXPECT_EQ(counters.rows[static_cast<size_t>(drop)], 0u);
  }
}

TEST(Window, M12CellsNeverMixRoundsOrRanksWithEarlyExits) {
  for (uint32_t depth : {1u, 2u, 3u}) {
    Windows windows({true, true, true}, depth, 4);
    windows.Run([&](int rank) {
      std::mt19937 random(static_cast<unsigned>(rank) + depth * 100);
      for (int i = 0; i < 3'000; ++i) {
        Plan plan{.rows = {}, .epsilon = static_cast<int>(random() % 3), .tau_ns = 0, .wait_for_room = false};
        for (int host = 0; host < 3; ++host) plan.rows.push_back(static_cast<int32_t>(random() % 5));
        const auto nap = random() % 50 == 0 ? std::chrono::microseconds(random() % 200) : std::chrono::microseconds(0);
        const Round round = RunRound(&windows[rank], plan, 0, [nap] {
          if (nap.count() > 0) std::this_thread::sleep_for(nap);
        });
        ASSERT_TRUE(round.status.ok()) << round.status.message();
        int64_t rows = 0, settled = 0;
        for (int host = 0; host < 3; ++host) {
          const Outcome outcome = windows[rank].exchange().outcome(host);
          rows += plan.rows[static_cast<size_t>(host)] > 0;
          settled += outcome != Outcome::kNone && outcome != Outcome::kWaiting;
        }
        ASSERT_EQ(rows, settled) << "rank " << rank << " round " << i;
      }
      // No rank waits for one that is done.
      windows[rank].Close();
    });
  }
}

TEST(Window, ABatchWaitsForRoomAndIsNotLost) {
  Windows windows({true, false}, 1, 4);
  windows.Run([&](int rank) {
    for (int i = 0; i < 200; ++i) {
      // Rank 1 waits for nothing in most rounds, and comes up to many rounds ahead.
      const Round round = RunRound(&windows[rank], Lossless({rank == 1 && i % 20 == 19 ? 4 : 0, 0}));
      ASSERT_TRUE(round.status.ok());
      ASSERT_EQ(round.taken.size(), rank == 1 && i % 20 == 19 ? 1u : 0u);
    }
  });
}

TEST(Window, ABatchWithoutRoomIsDroppedAtOnceIfTheRankDoesNotWait) {
  Windows windows({true, false}, 2, 4);
  Plan plan = Lossless({1, 0});
  plan.wait_for_room = false;
  plan.epsilon = 0;
  plan.tau_ns = 0;
  std::vector<Outcome> outcomes;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(RunRound(&windows[1], plan).status.ok());
    outcomes.push_back(windows[1].exchange().outcome(0));
  }
  EXPECT_EQ(outcomes,
            (std::vector{Outcome::kOwnTimeout, Outcome::kOwnTimeout, Outcome::kRingFull, Outcome::kRingFull}));
  // The host finds its rounds left, and serves none of them.
  for (int i = 0; i < 4; ++i) {
    const Round round = RunRound(&windows[0], Lossless({0, 0}));
    EXPECT_TRUE(round.status.ok() && round.served.empty());
  }
}

TEST(Window, AFailureReachesEveryRankInTheRound) {
  Windows windows({true, true, true}, 2, 4);
  std::vector<Status> results(3);
  windows.Run([&](int rank) {
    if (rank == 1) {
      ASSERT_TRUE(windows[1].Enter(Lossless({1, 1, 1}), 0, kRowBytes, nullptr).ok());
      windows[1].Fail({StatusCode::kAborted, "rank 1: the expert raised"});
    } else {
      results[static_cast<size_t>(rank)] = RunRound(&windows[rank], Lossless({1, 1, 1})).status;
    }
  });
  for (int rank : {0, 2}) {
    EXPECT_EQ(results[static_cast<size_t>(rank)].code(), StatusCode::kAborted);
    EXPECT_EQ(results[static_cast<size_t>(rank)].message(), "rank 1: the expert raised");
  }
  windows.Run([&](int rank) { EXPECT_TRUE(RunRound(&windows[rank], Lossless({1, 1, 1})).status.ok()); });
}

TEST(Window, EachOfManyFailuresInARowReachesEveryRank) {
  Windows windows({true, true, true}, 2, 4);
  windows.Run([&](int rank) {
    for (int i = 0; i < 100; ++i) {
      const std::string text = "rank " + std::to_string(i % 3) + " fails " + std::to_string(i);
      if (rank == i % 3) {
        ASSERT_TRUE(windows[rank].Enter(Lossless({1, 1, 1}), 0, kRowBytes, nullptr).ok());
        ASSERT_TRUE(windows[rank].Next(nullptr).ok());
        windows[rank].Fail({StatusCode::kAborted, text});
      } else {
        ASSERT_EQ(RunRound(&windows[rank], Lossless({1, 1, 1})).status.message(), text);
      }
    }
  });
}

TEST(Window, TheFailureOfARankThatHasLeftTheJobReachesTheOthers) {
  Windows windows({true, true}, 2, 4);
  ASSERT_TRUE(windows[1].Enter(Lossless({1, 1}), 0, kRowBytes, nullptr).ok());
  windows[1].Fail({StatusCode::kAborted, "rank 1: no gate"});
  windows[1].Close();
  windows.FreeBlock(1);
  EXPECT_EQ(RunRound(&windows[0], Lossless({1, 1})).status.message(), "rank 1: no gate");
}

TEST(Window, AfterAFailureTheWaitForALateRankHasALimit) {
  Windows windows({true, true}, 2, 4);
  ASSERT_TRUE(windows[0].Enter(Lossless({1, 1}), 0, kRowBytes, nullptr).ok());
  windows[0].Fail({StatusCode::kAborted, "rank 0: no gate"});
  Plan plan = Lossless({1, 1});
  plan.limit_ns = kNsPerMs;
  const Status late = windows[0].Enter(plan, 0, kRowBytes, nullptr);
  EXPECT_EQ(late.code(), StatusCode::kStall);
  EXPECT_NE(late.message().find("rank 1 has not come to round 1"), std::string::npos) << late.message();
  // The late rank gets the error of its round, and then both go on.
  EXPECT_EQ(RunRound(&windows[1], Lossless({1, 1})).status.message(), "rank 0: no gate");
  windows.Run([&](int rank) { EXPECT_TRUE(RunRound(&windows[rank], Lossless({1, 1})).status.ok()); });
}

TEST(Window, RanksInDifferentCallsGetAnErrorThatNamesBoth) {
  Windows windows({true, true}, 2, 4);
  windows.Run([&](int rank) {
    windows[rank].NameTag(1, "layer 'a'");
    windows[rank].NameTag(2, "layer 'b'");
    const Status status = RunRound(&windows[rank], Lossless({1, 1}), rank == 0 ? 1 : 2).status;
    EXPECT_EQ(status.code(), StatusCode::kMismatch);
    for (const char* part : {"rank 0", "rank 1", "layer 'a'", "layer 'b'", "same order"})
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  });
}

TEST(Window, ALostRankDropsItsTokensAndNoOthers) {
  Windows windows({true, true, true}, 2, 4);
  windows.Run([&](int rank) {
    if (rank == 2) return;
    windows[rank].Lose(2);
    const Round round = RunRound(&windows[rank], Lossless({1, 1, 1}));
    EXPECT_TRUE(round.status.ok());
    EXPECT_EQ(windows[rank].exchange().outcome(2), Outcome::kLostRank);
    EXPECT_EQ(windows[rank].exchange().outcome(1 - rank), Outcome::kDelivered);
    EXPECT_EQ(round.taken.size(), 2u);
  });
}

TEST(Window, ACheckEndsTheRoundWithItsError) {
  Windows windows({true, true}, 2, 4);
  ASSERT_TRUE(windows[0].Enter(Lossless({0, 1}), 0, kRowBytes, nullptr).ok());
  StatusOr<Window::Step> step = windows[0].Next(nullptr);
  ASSERT_TRUE(step.ok() && step->act == Act::kSend);
  step = windows[0].Next([] { return Status(StatusCode::kAborted, "interrupted"); });
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.status().message(), "interrupted");
  EXPECT_EQ(windows[0].exchange().outcome(1), Outcome::kOwnTimeout);
  EXPECT_GT(windows[0].waited_ns(1), 0);
}

TEST(Window, WrongPlansAreRefusedBeforeTheRound) {
  Windows windows({true, false}, 2, 4);
  EXPECT_EQ(windows[0].Enter(Lossless({0, 1}), 0, kRowBytes, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(windows[0].Enter(Lossless({-1, 0}), 0, kRowBytes, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(windows[0].exchange().round(), 0u);
  ASSERT_TRUE(windows[0].Enter(Lossless({4, 0}), 0, kRowBytes, nullptr).ok());
  EXPECT_EQ(windows[0].Enter(Lossless({4, 0}), 0, kRowBytes, nullptr).code(), StatusCode::kInvalidArgument);
}

TEST(Window, BatchesThatAreLargerThanTheirCellsAreSpilledAndTheMemoryIsReused) {
  Windows windows({true, true, true}, 2, 4);
  windows.Run([&](int rank) {
    for (int i = 0; i < 200; ++i) {
      const Round round = RunRound(&windows[rank], Lossless({i % 7, 100 + rank, i % 2 == 0 ? 1000 : 2}));
      ASSERT_TRUE(round.status.ok()) << round.status.message();
      ASSERT_EQ(round.taken.size(), i % 7 == 0 ? 2u : 3u);
    }
  });
  // Of each rank: pieces for 100 rows, for 1000, and for the two rounds that may be under way at once.
  EXPECT_LE(windows.spilled(), 3 * 16);
}

TEST(Window, M12SpilledBatchesNeverMixRoundsOrRanksWithEarlyExits) {
  Windows windows({true, true, true}, 2, 1);
  windows.Run([&](int rank) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int i = 0; i < 2'000; ++i) {
      Plan plan{.rows = {}, .epsilon = static_cast<int>(random() % 3), .tau_ns = 0, .wait_for_room = false};
      for (int host = 0; host < 3; ++host) plan.rows.push_back(static_cast<int32_t>(random() % 20));
      ASSERT_TRUE(RunRound(&windows[rank], plan).status.ok());
    }
    windows[rank].Close();
  });
}

TEST(Window, ABatchWithoutMemoryIsAnErrorOnEveryRank) {
  Windows windows({true, true}, 2, 4);
  windows.LimitSpills(0);
  windows.Run([&](int rank) {
    windows[rank].NameTag(0, "layer 'a'");
    const Status status = RunRound(&windows[rank], Lossless({1, rank == 0 ? 100 : 1})).status;
    EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
    EXPECT_NE(status.message().find("rank 0 has no shared memory for a batch of 100 tokens"), std::string::npos)
        << status.message();
  });
  windows.Run([&](int rank) { EXPECT_TRUE(RunRound(&windows[rank], Lossless({1, 1})).status.ok()); });
}

TEST(Window, ABlockIsForgottenWhenAllOthersHaveClosed) {
  Windows windows({true, true, false}, 2, 4);
  EXPECT_FALSE(windows[0].IsForgotten());
  windows[1].Close();
  EXPECT_FALSE(windows[0].IsForgotten());
  windows[2].Close();
  EXPECT_TRUE(windows[0].IsForgotten());
  EXPECT_TRUE(windows[0].HasClosed(1));
}

}  // namespace
}  // namespace horocache::moe
