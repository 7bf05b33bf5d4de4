#include <gtest/gtest.h>

#include "control/test_network.h"
#include "wire/codec.h"

namespace horocache::control {
namespace {

// Submits tensors with these names on all ranks, waits for them, and lets the job run until it rests.
void RunStep(TestJob& job, const std::vector<std::string>& names) {
  std::vector<std::vector<OpId>> ops;
  for (const std::string& name : names) ops.push_back(job.SubmitAll(Tensor(name)));
  job.WaitAll();
  job.Settle();
  for (const auto& op : ops) EXPECT_TRUE(job.Done(op));
  for (int rank = 0; rank < job.size(); ++rank) job.StopWaiting(rank);
  job.Settle();
  job.ExpectEqualCaches();
}

class BitsOfRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, BitsOfRanks, ::testing::Values(1, 2, 3, 4, 8, 64));

TEST_P(BitsOfRanks, TheFirstStepIsNegotiatedAndEveryLaterStepIsOneFastRound) {
  TestJob job(GetParam());
  RunStep(job, {"a", "b", "c"});
  EXPECT_EQ(job[0].cache_size(), 3);
  const ControllerCounters before = job[0].counters();
  EXPECT_EQ(before.slow_rounds, 1u);
  for (int step = 0; step < 10; ++step) RunStep(job, {"c", "a", "b"});
  const ControllerCounters& after = job[0].counters();
  EXPECT_EQ(after.slow_rounds, before.slow_rounds);
  EXPECT_EQ(after.rounds, before.rounds + 10);
  EXPECT_EQ(after.hits, before.hits + 30);
  EXPECT_EQ(after.frames, before.frames);
}

TEST_P(BitsOfRanks, AnIdleJobExchangesNothing) {
  TestJob job(GetParam());
  RunStep(job, {"a"});
  job.RunFor(20 * kS);  // until after the last stall inspection
  const uint64_t rounds = job[0].counters().rounds;
  const int64_t rings = job.hub.rings;
  job.RunFor(3600 * kS);
  EXPECT_EQ(job[0].counters().rounds, rounds);
  EXPECT_EQ(job.hub.rings, rings);
  EXPECT_EQ(job.NextWake(), kNever);
}

TEST_P(BitsOfRanks, WithoutACacheEveryStepIsNegotiated) {
  ControllerConfig config;
  config.cache_capacity = 0;
  TestJob job(GetParam(), config);
  for (int step = 0; step < 5; ++step) RunStep(job, {"a", "b"});
  EXPECT_EQ(job[0].counters().slow_rounds, 5u);
  EXPECT_EQ(job[0].counters().hits, 0u);
}

TEST_P(BitsOfRanks, TickingRanksAgreeToo) {
  ControllerConfig config;
  config.tick = true;
  TestJob job(GetParam(), config);
  for (int step = 0; step < 4; ++step) {
    const auto ops = job.SubmitAll(Tensor("a"));
    job.RunFor(3 * kMs);
    EXPECT_TRUE(job.Done(ops)) << step;
  }
  const uint64_t rounds = job[0].counters().rounds;
  job.RunFor(100 * kMs);
  EXPECT_NEAR(static_cast<double>(job[0].counters().rounds - rounds), 100, 2)
      << "a round each millisecond, idle or not";
}

TEST(Bits, SubmissionsLingerUntilTheCycleTimeIsOver) {
  TestJob job(2);
  RunStep(job, {"a", "b", "c"});
  const ControllerCounters before = job[0].counters();
  std::vector<std::vector<OpId>> ops;
  for (const char* name : {"a", "b", "c"}) {
    ops.push_back(job.SubmitAll(Tensor(name)));
    job.RunFor(kMs / 5);
  }
  EXPECT_FALSE(job.Done(ops[0]));
  job.RunFor(kMs);
  for (const auto& op : ops) EXPECT_TRUE(job.Done(op));
  EXPECT_EQ(job[0].counters().rounds, before.rounds + 1);
  EXPECT_EQ(job[0].counters().flushes, before.flushes + 1);
  EXPECT_EQ(job.plans[0].back().items.size(), 3u) << "operations of one round are not fused";
}

TEST(Bits, LingeringTakesTheCycleTime) {
  for (const int64_t cycle_time : {kMs / 4, 30 * kMs}) {
    ControllerConfig config;
    config.cycle_time_ns = cycle_time;
    TestJob job(2, config);
    RunStep(job, {"a"});
    const auto ops = job.SubmitAll(Tensor("a"));
    job.RunFor(cycle_time - kMs / 100);
    EXPECT_FALSE(job.Of(0, ops[0]).done());
    job.RunFor(kMs / 50);
    EXPECT_TRUE(job.Done(ops));
  }
}

TEST(Bits, LingeringEndsWhenAnyRankWaits) {
  TestJob job(2);
  RunStep(job, {"a"});
  job.RunFor(kMs);
  const OpId one = job.Submit(1, Tensor("a"));
  job.Settle();  // rank 1 lingers: it collects more submissions
  EXPECT_FALSE(job.Of(1, one).done());
  const OpId zero = job.Submit(0, Tensor("a"));
  job.Wait(0);
  job.Settle();  // no time has passed
  EXPECT_TRUE(job.Done({zero, one}));
}

TEST(Bits, GradientsSubmittedWhileAnotherRankWaitsShareARound) {
  TestJob job(2);
  RunStep(job, {"a", "b", "c"});
  job.RunFor(kMs);
  std::vector<OpId> early;
  for (const char* name : {"a", "b", "c"}) early.push_back(job.Submit(0, Tensor(name)));
  job.Wait(0);
  job.Settle();
  const OpId a = job.Submit(1, Tensor("a"));
  job.Settle();
  EXPECT_TRUE(job.Done({early[0], a})) << "after a pause, the first submission starts a round at once";
  const uint64_t rounds = job[1].round();
  const OpId b = job.Submit(1, Tensor("b"));
  job.RunFor(kMs / 20);
  const OpId c = job.Submit(1, Tensor("c"));
  job.Settle();
  EXPECT_FALSE(job.Of(1, b).done());
  job.RunFor(kMs / 2);
  EXPECT_TRUE(job.Done({early[1], early[2], b, c}));
  EXPECT_EQ(job[1].round(), rounds + 1);
}

TEST(Bits, SubmissionsBeforeTheStepAfterAWaitShareItsRound) {
  TestJob job(2);
  RunStep(job, {"a", "b"});
  job.RunFor(kMs);
  const OpId early[] = {job.Submit(0, Tensor("a")), job.Submit(0, Tensor("b"))};
  job.Wait(0);
  job.Settle();
  job.single_steps = true;
  const OpId a = job.Submit(1, Tensor("a"));
  // Rank 1 takes a, then sees that rank 0 waits. It lost its core in between, so b has been submitted meanwhile.
  job.StepRank(1);
  const OpId b = job.Submit(1, Tensor("b"));
  job.single_steps = false;
  const uint64_t rounds = job[1].round();
  job.Settle();
  EXPECT_TRUE(job.Done({early[0], a}) && job.Done({early[1], b}));
  EXPECT_EQ(job[1].round(), rounds + 1);
}

TEST(Bits, TheLastRankCompletesARoundThatTheOthersPublishedEarly) {
  TestJob job(3);
  RunStep(job, {"a"});
  const OpId zero = job.Submit(0, Tensor("a"));
  const OpId one = job.Submit(1, Tensor("a"));
  job.Wait(0);
  job.Wait(1);
  job.Settle();
  const int64_t rings = job.hub.rings;
  const OpId two = job.Submit(2, Tensor("a"));
  job.Wait(2);
  job.StepRank(2);
  EXPECT_EQ(job.Of(2, two).plans, 1) << "not in the step that published";
  EXPECT_EQ(job.hub.rings, rings + 2);
  job.Settle();
  EXPECT_TRUE(job.Done({zero, one, two}));
}

TEST(Bits, AWaitForAnOperationThatOthersLackCostsNoRounds) {
  TestJob job(3);
  RunStep(job, {"a", "b"});
  job.Submit(0, Tensor("a"));
  job.Wait(0, false);
  job.Submit(1, Tensor("b"));
  job.Wait(1, false);
  job.RunFor(100 * kMs);
  const uint64_t rounds = job[0].counters().rounds;
  job.RunFor(5 * kS);
  EXPECT_LE(job[0].counters().rounds, rounds);
}

TEST(Bits, ARankWithoutPendingOperationsDoesNotAnswerAWait) {
  TestJob job(3);
  RunStep(job, {"a"});
  const uint64_t rounds = job[0].counters().rounds;
  job.Submit(0, Tensor("a"));
  job.Wait(0);
  for (int i = 0; i < 10; ++i) {
    for (int rank = 0; rank < 3; ++rank) job.Touch(rank);
    job.Settle();
  }
  EXPECT_EQ(job[0].counters().rounds, rounds);
}

TEST(Bits, AnEmptyRoundDoesNotStartAnother) {
  TestJob job(2);
  RunStep(job, {"a", "b"});
  const uint64_t rounds = job[0].counters().rounds;
  job.Submit(0, Tensor("a"));
  job.Submit(1, Tensor("b"));
  for (int rank = 0; rank < 2; ++rank) job.Wait(rank, false);  // other threads may submit more
  job.RunFor(1 * kS);
  EXPECT_LE(job[0].counters().rounds, rounds + 1);
}

TEST(Bits, RoundsPerStepAreAtMostTheFlushesOfTheLastRank) {
  TestJob job(3);
  std::vector<std::string> names;
  for (int i = 0; i < 40; ++i) names.push_back("t" + std::to_string(i));
  RunStep(job, names);
  for (int step = 0; step < 5; ++step) {
    const uint64_t rounds = job[2].counters().rounds;
    const uint64_t flushes = job[2].counters().flushes;
    std::vector<std::vector<OpId>> ops(3);
    for (int rank = 0; rank < 2; ++rank) {
      for (const std::string& name : names) ops[static_cast<size_t>(rank)].push_back(job.Submit(rank, Tensor(name)));
      job.Wait(rank, true);
    }
    job.RunFor(10 * kMs);
    for (const std::string& name : names) {
      ops[2].push_back(job.Submit(2, Tensor(name)));
      job.RunFor(kMs / 7);
    }
    job.Wait(2);
    job.Settle();
    EXPECT_FALSE(job[2].HasPending());
    EXPECT_LE(job[2].counters().rounds - rounds, job[2].counters().flushes - flushes);
    for (int rank = 0; rank < 3; ++rank) job.StopWaiting(rank);
    job.Settle();
  }
}

TEST(Bits, AgreedHitsRunBeforeTheGatherOfTheirRound) {
  TestJob job(2);
  RunStep(job, {"cached"});
  job.single_steps = true;
  const auto cached = job.SubmitAll(Tensor("cached"));
  const auto fresh = job.SubmitAll(Tensor("new"));
  job.WaitAll();
  for (int rank = 0; rank < 2; ++rank) {
    while (job.Of(rank, cached[static_cast<size_t>(rank)]).plans == 0) {
      ASSERT_TRUE(job.StepRank(rank) || job.StepRank(1 - rank));
    }
    EXPECT_EQ(job.Of(rank, fresh[static_cast<size_t>(rank)]).plans, 0);
    EXPECT_EQ(job[rank].counters().slow_rounds, 1u) << "the gather is still under way";
  }
  job.single_steps = false;
  job.Settle();
  EXPECT_TRUE(job.Done(fresh));
}

TEST(Bits, AgreedBitsDisappearFromTheHintAtOnce) {
  TestJob job(2);
  RunStep(job, {"a"});
  RunStep(job, {"a"});
  for (const auto& hint : job.hub.hints) EXPECT_FALSE(Bitvector(hint).any_cache_bit());
}

TEST(Bits, FramesOfAnotherEpochOrProcessSetAreDroppedAndCounted) {
  TestJob job(2);
  wire::RequestList old;
  old.epoch = 7;
  old.rank = 1;
  wire::ResponseList other;
  other.process_set = 3;
  std::string frame;
  wire::Encode(old, &frame);
  job.hub.frames[0].emplace_back(1, frame);
  frame.clear();
  wire::Encode(other, &frame);
  job.hub.frames[1].emplace_back(0, frame);
  RunStep(job, {"a"});
  EXPECT_EQ(job[0].counters().dropped_frames, 1u);
  EXPECT_EQ(job[1].counters().dropped_frames, 1u);
}

TEST(Bits, AFrameThatDoesNotDecodeEndsTheSet) {
  for (const size_t to : {0u, 1u}) {
    TestJob job(2);
    job.hub.frames[to].emplace_back(1 - static_cast<int>(to), "garbage");
    const auto ops = job.SubmitAll(Tensor("a"));
    job.WaitAll();
    job.Settle();
    EXPECT_EQ(job.lost[to].code(), StatusCode::kCorrupt) << job.lost[to].ToString();
    EXPECT_EQ(job.Of(static_cast<int>(to), ops[to]).status.code(), StatusCode::kCorrupt);
  }
}

TEST(Bits, AFrameOfAnotherRoundOrRankEndsTheSet) {
  wire::RequestList list;
  list.rank = 1;
  list.round = 5;
  for (int wrong = 0; wrong < 2; ++wrong) {
    TestJob job(3);
    if (wrong == 1) {
      list.round = 0;
      list.rank = 2;  // the frame comes from rank 1
    }
    std::string frame;
    wire::Encode(list, &frame);
    job.hub.frames[0].emplace_back(1, frame);
    job.SubmitAll(Tensor("a"));
    job.WaitAll();
    job.Settle();
    EXPECT_EQ(job.lost[0].code(), StatusCode::kCorrupt) << job.lost[0].ToString();
  }
}

TEST(Bits, DifferentCachesAreFoundAndTheOddRankIsNamed) {
  TestJob job(3);
  job.hub.expect_equal_hashes = false;
  RunStep(job, {"a", "b"});
  // Rank 1 erases a cache entry that the others keep, as a memory error or a bug could do.
  wire::ResponseList forged;
  forged.erase = {0};
  ASSERT_TRUE(job[1].Finish(&forged).ok());
  job.hub.snapshots[1][job[1].round() - 1] = {};  // an empty snapshot of the forged round
  job.agreements[1] = MakeAgreement({});
  for (int rank : {0, 2}) {
    ASSERT_TRUE(job[rank].Finish(nullptr).ok());
    job.hub.snapshots[static_cast<size_t>(rank)][job[rank].round() - 1] = {};
    job.agreements[static_cast<size_t>(rank)] = MakeAgreement({});
  }
  const auto ops = job.SubmitAll(Tensor("b"));
  job.WaitAll();
  job.Settle();
  for (int rank = 0; rank < 3; ++rank) {
    const Outcome& outcome = job.Of(rank, ops[static_cast<size_t>(rank)]);
    EXPECT_EQ(outcome.status.code(), StatusCode::kInternal) << rank;
    EXPECT_NE(outcome.status.message().find("rank 1 differs from ranks 0, 2"), std::string::npos)
        << outcome.status.message();
    EXPECT_EQ(outcome.plans, 0) << "an operation of such a round has run";
  }
}

TEST(Bits, ASmallCacheGrowsWithOneReportAndAFixedOneDoesNot) {
  for (const bool fixed : {false, true}) {
    ControllerConfig config;
    config.cache_capacity = 4;
    config.cache_capacity_fixed = fixed;
    TestJob job(2, config);
    std::vector<std::string> names;
    for (int i = 0; i < 40; ++i) names.push_back("t" + std::to_string(i));
    for (int step = 0; step < 12; ++step) RunStep(job, names);
    size_t reports = 0;
    for (const auto& of_rank : job.reports) {
      for (const std::string& report : of_rank) reports += report.find("HOROCACHE_CACHE_CAPACITY") != std::string::npos;
    }
    EXPECT_EQ(reports, fixed ? 0u : 1u);
    EXPECT_EQ(job[0].cache_size(), fixed ? 4 : 40);
    EXPECT_GT(job[0].counters().evictions, 0u);
    const uint64_t slow = job[0].counters().slow_rounds;
    RunStep(job, names);
    EXPECT_EQ(job[0].counters().slow_rounds > slow, fixed);
  }
}

TEST(Bits, APendingRequestSurvivesItsEviction) {
  ControllerConfig config;
  config.cache_capacity = 1;
  config.cache_capacity_fixed = true;
  TestJob job(2, config);
  RunStep(job, {"a"});
  const OpId zero = job.Submit(0, Tensor("a"));  // pending by its bit
  job.RunFor(5 * kMs);
  const auto b = job.SubmitAll(Tensor("b"));  // takes the only slot
  job.RunFor(5 * kMs);
  EXPECT_TRUE(job.Done(b));
  EXPECT_FALSE(job.Of(0, zero).done());
  const OpId one = job.Submit(1, Tensor("a"));
  job.RunFor(5 * kMs);
  EXPECT_TRUE(job.Done({zero, one}));
}

TEST(Bits, UnknownStrategiesGiveNothing) { EXPECT_EQ(MakeAgreement({"bitz", 4, {}}), nullptr); }

}  // namespace
}  // namespace horocache::control
