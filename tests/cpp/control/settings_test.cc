// Settings that change on all ranks in one round, with every agreement strategy: see Note [Settings change in one
// round] in control/settings.h.
#include "control/settings.h"

#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "control/test_network.h"
#include "wire/codec.h"

namespace horocache::control {
namespace {

// ---- the text

std::string Mistake(const std::string& text) {
  const auto settings = ParseSettings(text);
  if (settings.ok()) return "";
  EXPECT_EQ(settings.status().code(), StatusCode::kInvalidArgument) << text;
  return settings.status().message();
}

TEST(ParseSettings, EverySettingHasALine) {
  const auto settings = ParseSettings(
      "fusion_threshold=4294967296\n\ncycle_time=0.5\ncache=0\ntable=allreduce:0-1k=shm;*=mpi\nnote= a=b; "
      "\"\xc3\xa9\"");
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->fusion_threshold_bytes, int64_t{1} << 32);
  EXPECT_EQ(settings->cycle_time_ns, 500'000);
  EXPECT_EQ(settings->cache, false);
  EXPECT_EQ(settings->table, "allreduce:0-1k=shm;*=mpi");
  EXPECT_EQ(settings->note, " a=b; \"\xc3\xa9\"");
}

TEST(ParseSettings, WhatHasNoLineStaysOpen) {
  EXPECT_EQ(*ParseSettings("cache=1"), Settings{.cache = true});
  EXPECT_EQ(*ParseSettings("table="), Settings{.table = ""});
  EXPECT_EQ(*ParseSettings("note=\n"), Settings{.note = ""});
  EXPECT_EQ(*ParseSettings("fusion_threshold=0\ncycle_time=0"),
            (Settings{.fusion_threshold_bytes = 0, .cycle_time_ns = 0}));
}

TEST(ParseSettings, AMistakeIsAnErrorWithTheLine) {
  for (const char* wrong :
       {"fusion_threshold=", "fusion_threshold=-1", "fusion_threshold=4294967297", "fusion_threshold=1k",
        "fusion_threshold=99999999999999999999", "cycle_time=", "cycle_time=-0.1", "cycle_time=1000.1",
        "cycle_time=nan", "cycle_time=inf", "cycle_time=1e999", "cache=", "cache=2", "cache=true", "cach=1", "=1",
        " cache=1", "cache", "cache=1 "}) {
    EXPECT_NE(Mistake(std::string("note=n\n") + wrong).find("settings: '" + std::string(wrong) + "': "),
              std::string::npos)
        << wrong << ": " << Mistake(wrong);
  }
  EXPECT_NE(Mistake("cache=1\nnote=n\ncache=1").find("the name occurs twice"), std::string::npos);
  EXPECT_NE(Mistake("cach=1").find("fusion_threshold, cycle_time, cache, table and note"), std::string::npos);
  EXPECT_NE(Mistake("\x1b[31m=1").find("\\x1b"), std::string::npos) << "escapes what acts on a terminal";
}

TEST(ParseSettings, AnEmptyTextAZeroByteAndTooMuchTextAreErrors) {
  for (const char* empty : {"", "\n", "\n\n"}) EXPECT_NE(Mistake(empty).find("is empty"), std::string::npos);
  EXPECT_NE(Mistake(std::string("note=a\0b", 8)).find("zero byte"), std::string::npos);
  const std::string most = "note=" + std::string(kMaxSettings - 5, 'n');
  EXPECT_EQ(Mistake(most), "");
  EXPECT_NE(Mistake(most + "n").find("262145 bytes; at most 262144"), std::string::npos) << Mistake(most + "n");
  EXPECT_LT(Mistake(std::string(100'000, 'x')).size(), 1000u) << "a long line is cut";
}

// ---- on all ranks

Selector TwoBackends(int ranks) {
  const BackendTraits first{.name = "first", .ops = ~0u, .device_classes = ~0u, .plain_fold = true};
  const BackendTraits second{.name = "second", .ops = ~0u, .device_classes = ~0u};
  return Selector::Parse({first, second}, {ranks}, "").value();
}

// Parameters: the strategy; tick mode; the number of ranks.
class SettingsTest : public ::testing::TestWithParam<std::tuple<std::string, bool, int>> {
 protected:
  static int size() { return std::get<2>(GetParam()); }
  static ControllerConfig Config() {
    ControllerConfig config;
    config.tick = std::get<1>(GetParam());
    config.cycle_time_ns = kMs;
    config.stall_warn_ns = 100 * kS;
    config.selector = TwoBackends(size());
    return config;
  }
  static AgreementConfig Agreement() {
    AgreementConfig agreement{.strategy = std::get<0>(GetParam()), .radix = 2};
    for (int rank = 0; rank < size(); ++rank) agreement.host_of.push_back(rank / 2);
    if (agreement.strategy != "leaders") agreement.host_of.clear();
    return agreement;
  }

  void Configure(const std::string& text) {
    const Status status = job[0].Configure(text);
    ASSERT_TRUE(status.ok()) << status.message();
    job.Touch(0);
  }
  // Gives up at a fatal failure, as an endless loop.
  void Run(int64_t ns = 20 * kMs) {
    job.RunFor(ns);
    ASSERT_FALSE(HasFatalFailure());
  }
  // All ranks submit it, wait for it, and go on.
  void Complete(const wire::Signature& signature) {
    const std::vector<OpId> ops = job.SubmitAll(signature);
    job.WaitAll();
    Run();
    EXPECT_TRUE(job.Done(ops)) << signature.name;
    for (int rank = 0; rank < size(); ++rank) job.StopWaiting(rank);
    Run();
  }
  // The last plan of each rank, which must be equal.
  Plan LastPlan() {
    for (int rank = 1; rank < size(); ++rank) {
      const Plan &mine = job.plans[0].back(), &other = job.plans[static_cast<size_t>(rank)].back();
      EXPECT_EQ(other.sequence, mine.sequence) << "rank " << rank;
      EXPECT_EQ(other.choice, mine.choice) << "rank " << rank;
      EXPECT_EQ(other.items.size(), mine.items.size()) << "rank " << rank;
    }
    return job.plans[0].back();
  }
  std::string BackendOf(const Plan& plan) { return job[0].config().selector.backends()[plan.choice.backend].name; }
  void ExpectChanges(size_t count) {
    for (int rank = 0; rank < size(); ++rank) {
      const auto& changes = job.settings[static_cast<size_t>(rank)];
      ASSERT_EQ(changes.size(), count) << "rank " << rank;
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(changes[i].settings, job.settings[0][i].settings) << "rank " << rank;
        EXPECT_EQ(changes[i].round, job.settings[0][i].round) << "rank " << rank;
        EXPECT_EQ(changes[i].plans, job.settings[0][i].plans) << "rank " << rank;
      }
    }
    job.ExpectEqualCaches();
  }

  TestJob job{size(), Config(), Agreement()};
};

TEST_P(SettingsTest, AllRanksChangeInTheSameRoundAndNothingFollows) {
  Run();
  Configure("fusion_threshold=16\ncycle_time=2\nnote=n");
  Run();
  ExpectChanges(1);
  for (int rank = 0; rank < size(); ++rank) {
    EXPECT_EQ(job[rank].config().fusion_threshold_bytes, 16);
    EXPECT_EQ(job[rank].config().cycle_time_ns, 2 * kMs);
    EXPECT_EQ(job.settings[static_cast<size_t>(rank)][0].settings.note, "n");
  }
  if (job[0].config().tick) return;
  const uint64_t rounds = job[0].round();
  EXPECT_LE(rounds, 2u);
  Run(1 * kS);
  EXPECT_EQ(job[0].round(), rounds) << "an idle job makes no rounds";
}

TEST_P(SettingsTest, SeveralChangesInARowComeInTheirOrder) {
  for (int i = 0; i < 5; ++i) Configure("note=" + std::to_string(i) + "\nfusion_threshold=" + std::to_string(100 + i));
  Run();
  ExpectChanges(5);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(job.settings[0][i].settings.note, std::to_string(i));
  EXPECT_EQ(job[size() - 1].config().fusion_threshold_bytes, 104);
}

TEST_P(SettingsTest, TheFusionThresholdHoldsFromItsRoundOn) {
  const auto plans_of_step = [this] {
    const size_t before = job.plans[0].size();
    std::vector<std::vector<OpId>> steps;
    for (const char* name : {"a", "b", "c"}) steps.push_back(job.SubmitAll(Tensor(name)));  // 16 bytes each
    job.WaitAll();
    Run();
    for (const auto& ops : steps) EXPECT_TRUE(job.Done(ops));
    for (int rank = 0; rank < size(); ++rank) job.StopWaiting(rank);
    Run();
    return job.plans[0].size() - before;
  };
  EXPECT_EQ(plans_of_step(), 1u);
  Configure("fusion_threshold=32");
  Run();
  EXPECT_EQ(plans_of_step(), 2u);
  Configure("fusion_threshold=0");
  Run();
  EXPECT_EQ(plans_of_step(), 3u);
  Configure("fusion_threshold=1000");
  Run();
  EXPECT_EQ(plans_of_step(), 1u);
  ExpectChanges(3);
}

TEST_P(SettingsTest, ANewTableChoosesAgainForCachedOperations) {
  Complete(Tensor("a"));
  Complete(Tensor("a"));
  EXPECT_EQ(BackendOf(LastPlan()), "first");
  EXPECT_EQ(LastPlan().items[0].chosen_by, wire::ChosenBy::kOrder);
  Configure("table=allreduce:0-1k=second;allreduce=gone");
  Run();
  for (int i = 0; i < 2; ++i) {  // negotiated, then cached
    Complete(Tensor("a"));
    EXPECT_EQ(BackendOf(LastPlan()), "second");
    EXPECT_EQ(LastPlan().items[0].chosen_by, wire::ChosenBy::kTable);
  }
  Configure("table=");
  Run();
  Complete(Tensor("a"));
  EXPECT_EQ(BackendOf(LastPlan()), "first");
  ExpectChanges(2);
}

// Rank 0 changes the table in the round in which it submits, so rank 0's answer must be by the new one.
TEST_P(SettingsTest, TheRoundOfANewTableChoosesByIt) {
  Configure("table=*=second");
  Complete(Tensor("a"));
  EXPECT_EQ(BackendOf(LastPlan()), "second");
  ExpectChanges(1);
}

TEST_P(SettingsTest, TheCacheIsSwitchedOffAndOn) {
  Complete(Tensor("a"));
  Complete(Tensor("a"));
  const auto misses = [this] { return job[size() - 1].counters().misses; };
  EXPECT_EQ(misses(), 1u);
  Configure("cache=0");
  Run();
  EXPECT_EQ(job[size() - 1].cache_size(), 0);
  for (int i = 0; i < 3; ++i) Complete(Tensor("a"));
  EXPECT_EQ(misses(), 4u);
  Configure("cache=0");  // once more: nothing changes
  Run();
  Configure("cache=1");
  Run();
  Configure("cache=1");
  Run();
  for (int i = 0; i < 3; ++i) Complete(Tensor("a"));
  EXPECT_EQ(misses(), 5u);
  EXPECT_EQ(job[size() - 1].cache_size(), 1);
  ExpectChanges(4);
}

TEST_P(SettingsTest, EmptyingAndSwitchingOnInOneChange) {
  for (int i = 0; i < 70; ++i) Complete(Tensor("t" + std::to_string(i)));  // more than one word of cache bits
  Configure("cache=1\ntable=allreduce=second");
  Run();
  EXPECT_EQ(job[size() - 1].cache_size(), 0);
  for (int i = 0; i < 70; ++i) Complete(Tensor("t" + std::to_string(i)));
  EXPECT_EQ(job[size() - 1].cache_size(), 70);
  EXPECT_EQ(BackendOf(LastPlan()), "second");
  ExpectChanges(1);
}

// Some ranks wait for cached operations, one of them a group, that others have not submitted when the cache is emptied.
TEST_P(SettingsTest, PendingCachedRequestsGoToRank0) {
  const wire::Signature group = Group("g", {"x", "y"});
  for (const char* change : {"cache=0", "table=allreduce=second\ncache=1", "cache=0\ntable="}) {
    Complete(Tensor("a"));
    Complete(group);
    std::vector<OpId> a(static_cast<size_t>(size())), g(static_cast<size_t>(size()));
    const auto submit = [&](int rank) {
      a[static_cast<size_t>(rank)] = job.Submit(rank, Tensor("a"));
      g[static_cast<size_t>(rank)] = job.Submit(rank, group);
      job.Wait(rank);
    };
    for (int rank = 1; rank < size(); ++rank) submit(rank);
    Run();
    Configure(change);
    Run();
    submit(0);
    Run();
    EXPECT_TRUE(job.Done(a) && job.Done(g)) << change;
    for (int rank = 0; rank < size(); ++rank) job.StopWaiting(rank);
    Run();
  }
  ExpectChanges(3);
}

// The same, if rank 0 is the one that waits.
TEST_P(SettingsTest, ARequestOfRank0IsAgreedOnAfterTheCacheWasEmptied) {
  Complete(Tensor("a"));
  const OpId mine = job.Submit(0, Tensor("a"));
  job.Wait(0);
  Run();
  Configure("cache=0");
  Run();
  std::vector<OpId> ops = {mine};
  for (int rank = 1; rank < size(); ++rank) ops.push_back(job.Submit(rank, Tensor("a")));
  job.WaitAll();
  Run();
  EXPECT_TRUE(job.Done(ops));
  ExpectChanges(1);
}

// A submission that no rank has flushed yet when the settings change.
TEST_P(SettingsTest, UnflushedSubmissionsAreNotLost) {
  Complete(Tensor("a"));
  Configure("cache=0\ncycle_time=5");
  const std::vector<OpId> ops = job.SubmitAll(Tensor("a"));
  const std::vector<OpId> fresh = job.SubmitAll(Tensor("b"));
  Run(100 * kMs);  // no thread waits
  EXPECT_TRUE(job.Done(ops) && job.Done(fresh));
  ExpectChanges(1);
}

TEST_P(SettingsTest, SignaturesThatChangeInTheSameRound) {
  Complete(Tensor("a"));
  Configure("table=allreduce=second");
  Complete(Tensor("a", {5}));
  EXPECT_EQ(LastPlan().items[0].signature->tensors[0].shape, std::vector<int64_t>{5});
  ExpectChanges(1);
}

TEST_P(SettingsTest, InlineAllreducesLoseNothing) {
  const std::vector<std::byte> data(16);
  const auto complete = [&] {
    std::vector<OpId> ops;
    for (int rank = 0; rank < size(); ++rank) ops.push_back(job.Submit(rank, Tensor("a"), data));
    job.WaitAll();
    Run();
    EXPECT_TRUE(job.Done(ops));
    for (int rank = 0; rank < size(); ++rank) job.StopWaiting(rank);
    Run();
    return LastPlan().is_inline();
  };
  const bool may = std::get<0>(GetParam()) == "bits";
  EXPECT_FALSE(complete());
  EXPECT_EQ(complete(), may);
  Configure("table=allreduce=first");
  Run();
  EXPECT_FALSE(complete()) << "its cache entry is gone, so it is negotiated";
  EXPECT_EQ(complete(), may);
  Configure("cache=0");
  Run();
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(complete());
  Configure("cache=1\ntable=allreduce=second");
  Run();
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(complete()) << "the second backend folds in another way";
  ExpectChanges(3);
}

TEST_P(SettingsTest, AJoinedRankChangesToo) {
  if (size() == 1) GTEST_SKIP() << "one rank joins at once";
  Complete(Tensor("a"));
  const int last = size() - 1;
  std::vector<OpId> joins(static_cast<size_t>(size()));
  joins[static_cast<size_t>(last)] = job.Submit(last, OfOp(wire::Op::kJoin, "join"));
  job.Wait(last);
  Run();
  Configure("cache=0\ntable=allreduce=second");
  Run();
  for (int i = 0; i < 2; ++i) {
    std::vector<OpId> ops;
    for (int rank = 0; rank < last; ++rank) {
      ops.push_back(job.Submit(rank, Tensor("a")));
      job.Wait(rank);
    }
    Run();
    for (int rank = 0; rank < last; ++rank) {
      EXPECT_EQ(job.Of(rank, ops[static_cast<size_t>(rank)]).plans, 1);
      job.StopWaiting(rank);
    }
    EXPECT_EQ(BackendOf(LastPlan()), "second");
    Run();
    if (i == 0) Configure("cache=1");
    Run();
  }
  for (int rank = 0; rank < last; ++rank) {
    joins[static_cast<size_t>(rank)] = job.Submit(rank, OfOp(wire::Op::kJoin, "join"));
    job.Wait(rank);
  }
  Run();
  EXPECT_TRUE(job.Done(joins));
  ExpectChanges(2);
}

// Rank 0 itself has joined: it still coordinates.
TEST_P(SettingsTest, RankZeroMayHaveJoined) {
  if (size() == 1) GTEST_SKIP() << "one rank joins at once";
  job.Submit(0, OfOp(wire::Op::kJoin, "join"));
  job.Wait(0);
  Run();
  Configure("table=allreduce=second");
  Run();
  for (int rank = 1; rank < size(); ++rank) {
    job.Submit(rank, Tensor("a"));
    job.Wait(rank);
  }
  Run();
  EXPECT_EQ(BackendOf(LastPlan()), "second");
  ExpectChanges(1);
}

TEST_P(SettingsTest, TheRoundInWhichRanksLeaveMayCarryThem) {
  Configure("note=last");
  for (int rank = 0; rank < size(); ++rank) {
    job[rank].Leave();
    job.Touch(rank);
  }
  Run();
  ExpectChanges(1);
  for (int rank = 0; rank < size(); ++rank) EXPECT_TRUE(job[rank].closed());
  EXPECT_EQ(job[0].Configure("note=late").code(), StatusCode::kShutDown);
}

// Whichever round an abort hits, all ranks have changed the same settings, or none.
TEST_P(SettingsTest, AnAbortInTheSameRoundEndsTheSetOnAllRanks) {
  Configure("fusion_threshold=7");
  job[size() - 1].Abort("enough");
  job.Touch(size() - 1);
  Run();
  for (int rank = 0; rank < size(); ++rank) {
    EXPECT_EQ(job[rank].end().code(), StatusCode::kAborted) << "rank " << rank;
    EXPECT_EQ(job.settings[static_cast<size_t>(rank)].size(), job.settings[0].size());
    EXPECT_EQ(job[rank].config().fusion_threshold_bytes, job[0].config().fusion_threshold_bytes);
  }
  EXPECT_EQ(job[0].Configure("note=late").code(), StatusCode::kAborted);
}

TEST_P(SettingsTest, ARankThatDiesEndsTheSetAndTheChange) {
  if (size() == 1) GTEST_SKIP() << "no other rank";
  const int last = size() - 1;
  job.stopped[static_cast<size_t>(last)] = true;
  Configure("fusion_threshold=7");
  job.SubmitAll(Tensor("a"));
  job.WaitAll();
  Run();
  for (int rank = 0; rank < last; ++rank) {
    job[rank].EndWith({StatusCode::kPeerLost, "the last rank died."});
    job.Touch(rank);
  }
  Run();
  for (int rank = 0; rank < last; ++rank) {
    EXPECT_TRUE(job.settings[static_cast<size_t>(rank)].empty()) << "rank " << rank;
    EXPECT_EQ(job.Of(rank, 1).status.code(), StatusCode::kPeerLost);
  }
  EXPECT_EQ(job[0].Configure("note=late").code(), StatusCode::kPeerLost);
}

// A rank that does not answer is named after the limit, although nothing is pending but the change.
TEST_P(SettingsTest, ARankThatDoesNotAnswerIsReported) {
  if (size() == 1) GTEST_SKIP() << "no other rank";
  ControllerConfig config = Config();
  config.stall_warn_ns = 50 * kMs;
  config.stall_fail_ns = 400 * kMs;
  TestJob slow(size(), config, Agreement());
  slow.RunFor(5 * kMs);
  const int last = size() - 1;
  slow.stopped[static_cast<size_t>(last)] = true;
  ASSERT_TRUE(slow[0].Configure("note=n").ok());
  slow.Touch(0);
  slow.RunFor(2 * kS);
  const Status& end = slow[0].end();
  EXPECT_EQ(end.code(), StatusCode::kStall) << end.ToString();
  EXPECT_NE(end.message().find("rank"), std::string::npos) << end.message();
  for (int rank = 0; rank < last; ++rank) EXPECT_TRUE(slow.settings[static_cast<size_t>(rank)].empty());
}

// A change must not hide a deadlock, nor look like one.
TEST_P(SettingsTest, RanksThatWaitForEachOtherAreFoundAroundAChange) {
  if (size() == 1) GTEST_SKIP() << "no other rank";
  Complete(Tensor("a"));
  Complete(Tensor("b"));
  for (int rank = 0; rank < size(); ++rank) job.WaitFor(rank, job.Submit(rank, Tensor(rank == 0 ? "a" : "b")));
  Configure("cache=0");
  Run(1 * kS);
  for (int rank = 0; rank < size(); ++rank) {
    EXPECT_EQ(job.Of(rank, 3).status.code(), StatusCode::kStall)
        << "rank " << rank << ": " << job.Of(rank, 3).status.ToString();
  }
  ExpectChanges(1);
}

TEST_P(SettingsTest, OnlyRank0MayChangeThemAndAMistakeChangesNothing) {
  if (size() > 1) {
    const Status other = job[1].Configure("cache=0");
    EXPECT_EQ(other.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(other.message().find("rank 1 cannot change them; rank 0 can"), std::string::npos) << other.message();
  }
  for (const char* wrong : {"", "cache=2", "table=allreduce", "table=allreduce:5-1=first", "table=*=first;x=first"}) {
    EXPECT_EQ(job[0].Configure(wrong).code(), StatusCode::kInvalidArgument) << wrong;
  }
  job.Touch(0);
  Run();
  ExpectChanges(0);
}

// Submissions that fill a fused operation are flushed at once, although no thread waits and cycle_time is far away.
TEST_P(SettingsTest, SubmissionsThatFillAFusedOperationDoNotWait) {
  if (job[0].config().tick) GTEST_SKIP() << "ticks do not depend on submissions";
  Configure("cycle_time=1000\nfusion_threshold=32");
  Run();
  const auto first = job.SubmitAll(Tensor("a"));
  Run(kMs);
  EXPECT_EQ(job.Done(first), size() == 1) << "16 of 32 bytes linger";
  const auto second = job.SubmitAll(Tensor("b"));
  Run(kMs);
  EXPECT_TRUE(job.Done(first) && job.Done(second));
  const auto third = job.SubmitAll(Tensor("c"));
  Run(kMs);
  EXPECT_EQ(job.Done(third), size() == 1) << "the count begins anew";
  Configure("fusion_threshold=0");  // its round flushes, too
  Run(kMs);
  EXPECT_TRUE(job.Done(third));
  const auto fourth = job.SubmitAll(Tensor("d", {1000}));
  Run(kMs);
  EXPECT_EQ(job.Done(fourth), size() == 1) << "without fusion nothing is ever full";
  Run(1 * kS);
  EXPECT_TRUE(job.Done(fourth));
}

INSTANTIATE_TEST_SUITE_P(All, SettingsTest,
                         ::testing::Combine(::testing::Values("bits", "leaders", "coordinator", "tree"),
                                            ::testing::Bool(), ::testing::Values(1, 2, 5)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + (std::get<1>(info.param) ? "Tick" : "Event") +
                                  std::to_string(std::get<2>(info.param));
                         });

// ---- one controller

TEST(Settings, ACapacityOfZeroStaysZero) {
  ControllerConfig config;
  config.cache_capacity = 0;
  TestJob job(2, config);
  ASSERT_TRUE(job[0].Configure("cache=1").ok());
  job.Touch(0);
  for (int i = 0; i < 3; ++i) {
    const auto ops = job.SubmitAll(Tensor("a"));
    job.WaitAll();
    job.RunFor(10 * kMs);
    EXPECT_TRUE(job.Done(ops));
  }
  EXPECT_EQ(job[1].cache_size(), 0);
}

TEST(Settings, AKnownEntryOfTheOldCacheIsNoHit) {
  TestJob job(1);
  std::vector<KnownEntry> known(1);
  const auto submit = [&](OpId op) {
    EXPECT_TRUE(job[0].Submit(op, {Tensor("a"), wire::kNoBit}, job.now, {}, &known[0]).ok());
    job.outcomes[0][op] = {};
    job.Wait(0);
    job.Touch(0);
    job.RunFor(10 * kMs);
    EXPECT_EQ(job.Of(0, op).plans, 1);
  };
  for (OpId op = 1; op <= 3; ++op) submit(op);
  EXPECT_EQ(job[0].counters().hits, 2u);
  EXPECT_NE(known[0].signature, nullptr);
  ASSERT_TRUE(job[0].Configure("table=").ok());
  job.Touch(0);
  job.RunFor(10 * kMs);
  for (OpId op = 4; op <= 6; ++op) submit(op);
  EXPECT_EQ(job[0].counters().misses, 2u);
  EXPECT_EQ(job[0].counters().hits, 4u);
}

// Sums of sizes near the limit stay within 64 bits.
TEST(Settings, HugeSubmissionsDoNotOverflowTheCountOfBytes) {
  for (const int64_t threshold : {int64_t{0}, int64_t{1} << 32}) {
    ControllerConfig config;
    config.fusion_threshold_bytes = threshold;
    TestJob job(2, config);
    for (const char* name : {"a", "b", "c", "d"}) job.SubmitAll(Tensor(name, {(int64_t{1} << 60) - 1}));
    job.WaitAll();
    job.RunFor(10 * kMs);
    EXPECT_EQ(job.plans[1].size(), 4u);
  }
}

// A response list as only another version of horocache, or a broken rank 0, could send it.
TEST(Settings, SettingsThatDoNotParseAreCorrupt) {
  const std::vector<std::string> texts = {"cache=7", "x", "table=allreduce", std::string(kMaxSettings + 1, 'n')};
  for (const std::string& wrong : texts) {
    ControllerConfig config;
    config.size = 2;
    config.rank = 1;
    config.selector = AnySelector(2);
    Controller controller(config);
    wire::ResponseList list;
    list.settings = wrong;
    const Status status = controller.Finish(&list);
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.ToString();
    EXPECT_EQ(status.message().find("from rank 0: "), 0u) << status.message();
    EXPECT_EQ(controller.config().fusion_threshold_bytes, ControllerConfig().fusion_threshold_bytes);
  }
}

}  // namespace
}  // namespace horocache::control
