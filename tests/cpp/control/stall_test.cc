#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "control/stall_inspector.h"
#include "control/test_network.h"

namespace horocache::control {
namespace {

ControllerConfig Limits(int64_t warn_ns = 10 * kS, int64_t fail_ns = 60 * kS) {
  ControllerConfig config;
  config.stall_warn_ns = warn_ns;
  config.stall_fail_ns = fail_ns;
  return config;
}

void ExpectContains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// ---- reports and limits

class StallOf : public ::testing::TestWithParam<bool> {};  // true: the operation is cached
INSTANTIATE_TEST_SUITE_P(Cached, StallOf, ::testing::Bool());

TEST_P(StallOf, IsReportedOnEveryRankWithTheRanksThatHaveOrLackTheOperation) {
  TestJob job(3, Limits());
  if (GetParam()) {
    job.SubmitAll(Tensor("x"));
    job.RunFor(5 * kMs);
  }
  job[1].SetLastDone("y");
  const OpId zero = job.Submit(0, Tensor("x"));
  const OpId two = job.Submit(2, Tensor("x"));
  job.Wait(0);  // rank 2 does not wait, and rank 1 computes
  job.RunFor(9900 * kMs);
  for (const auto& reports : job.reports) EXPECT_TRUE(reports.empty());
  job.RunFor(200 * kMs);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(job.reports[static_cast<size_t>(rank)].size(), 1u) << "rank " << rank;
    const std::string& report = job.reports[static_cast<size_t>(rank)][0];
    ExpectContains(report, "more than 10 s");
    ExpectContains(report, "allreduce 'x' was submitted by ranks 0, 2 and not by rank 1 (rank 1 last completed 'y').");
  }
  // Rank 1 submits x in time, and x completes.
  const OpId one = job.Submit(1, Tensor("x"));
  job.RunFor(5 * kMs);
  EXPECT_TRUE(job.Done({zero, one, two}));
}

TEST_P(StallOf, LateRanksAreAskedForStacksAndEveryRankGetsTheAnswer) {
  TestJob job(3, Limits());
  if (GetParam()) {
    job.SubmitAll(Tensor("x"));
    job.RunFor(5 * kMs);
  }
  job.Submit(0, Tensor("x"));
  job.Submit(2, Tensor("x"));
  job.Wait(0);
  job.RunFor(10'100 * kMs);
  EXPECT_EQ(job.reports[0].size(), 1u) << "more than one report";
  EXPECT_FALSE(job[0].TakeStackRequest());
  EXPECT_TRUE(job[1].TakeStackRequest());
  EXPECT_FALSE(job[1].TakeStackRequest()) << "two requests for one report";
  EXPECT_FALSE(job[2].TakeStackRequest());
  const uint64_t rounds = job[0].counters().rounds;
  job[1].SendNote("rank 1 is in evaluate()");
  job.Touch(1);
  job.RunFor(5 * kMs);
  EXPECT_EQ(job[0].counters().rounds, rounds + 1);
  for (const auto& reports : job.reports) {
    ASSERT_EQ(reports.size(), 2u);
    EXPECT_EQ(reports[1], "rank 1 is in evaluate()");
  }
  job.RunFor(10 * kS);
  EXPECT_TRUE(job[1].TakeStackRequest()) << "no request with the next report";
}

class NoteOver : public ::testing::TestWithParam<const char*> {};  // the strategy
INSTANTIATE_TEST_SUITE_P(Strategies, NoteOver, ::testing::Values("bits", "leaders", "coordinator", "tree"));

TEST_P(NoteOver, EveryRankGetsTheNoteOnce) {
  TestJob job(5, Limits(), {.strategy = GetParam(), .radix = 2});
  job[3].SendNote("here");
  job[3].SendNote("and here");
  job.Touch(3);
  job[4].SendNote("there");
  job.Touch(4);
  job.RunFor(20 * kMs);
  for (int rank = 0; rank < 5; ++rank) {
    std::string all;
    for (const std::string& report : job.reports[static_cast<size_t>(rank)]) all += report + "\n";
    EXPECT_EQ(all, "here\nand here\nthere\n") << "rank " << rank;
  }
  job.RunFor(100 * kMs);
  EXPECT_LE(job.reports[0].size(), 2u);
}

TEST_P(NoteOver, ANoteOfferedDuringARoundReachesEveryRank) {
  for (int steps = 0; steps < 12; ++steps) {
    TestJob job(3, Limits(), {.strategy = GetParam(), .radix = 2});
    job[1].SendNote("first");
    job.Touch(1);
    for (int step = 0; step < steps; ++step) {
      for (int rank = 0; rank < 3; ++rank) job.StepRank((rank + 1) % 3);
    }
    job[1].SendNote("second");
    job.Touch(1);
    job.RunFor(20 * kMs);
    for (int rank = 0; rank < 3; ++rank) {
      std::string all;
      for (const std::string& report : job.reports[static_cast<size_t>(rank)]) all += report + "\n";
      EXPECT_EQ(all, "first\nsecond\n") << "rank " << rank << ", after " << steps << " steps";
    }
  }
}

TEST(Stall, AtMostFourLateRanksAreAskedForStacks) {
  TestJob job(9, Limits());
  job.Submit(0, Tensor("x"));
  job.Wait(0);
  job.RunFor(10'100 * kMs);
  for (int rank = 0; rank < 9; ++rank) EXPECT_EQ(job[rank].TakeStackRequest(), rank >= 1 && rank <= 4) << rank;
}

TEST(Stall, AReportNamesTheProcessSetAndRanksOfTheJob) {
  ControllerConfig config = Limits();
  config.process_set = 2;
  config.names = RankNames(2, {3, 5, 6});
  TestJob job(3, config);
  job.Submit(0, Tensor("x"));
  job.Submit(2, Tensor("x"));
  job.Wait(0);
  job.RunFor(10100 * kMs);
  ASSERT_EQ(job.reports[1].size(), 1u);
  ExpectContains(job.reports[1][0],
                 "allreduce 'x' of process set 2 was submitted by ranks 3, 6 and not by rank 5 (rank 5 has completed "
                 "nothing yet).");
}

TEST_P(StallOf, FailsAfterTheLimitOnTheRanksThatHaveTheOperation) {
  TestJob job(3, Limits(10 * kS, 57 * kS));  // 57 s is not a multiple of 10 s: the limit holds exactly
  if (GetParam()) {
    job.SubmitAll(Tensor("x"));
    job.RunFor(5 * kMs);
  }
  const OpId zero = job.Submit(0, Tensor("x"));
  job.Wait(0);
  job.RunFor(56'900 * kMs);
  EXPECT_FALSE(job.Of(0, zero).done());
  EXPECT_GE(job.reports[1].size(), 2u) << "too few reports";
  job.RunFor(400 * kMs);
  EXPECT_EQ(job.Of(0, zero).status.code(), StatusCode::kStall);
  ExpectContains(job.Of(0, zero).status.message(), "submitted by rank 0 and not by ranks 1, 2");
  ExpectContains(job.Of(0, zero).status.message(), "Gave up after 57 s (HOROCACHE_STALL_SHUTDOWN_TIME_SECONDS)");
  EXPECT_FALSE(job[0].closed());
  // The job goes on, with the same operation too.
  job.StopWaiting(0);
  const auto again = job.SubmitAll(Tensor("x"));
  job.RunFor(5 * kMs);
  EXPECT_TRUE(job.Done(again));
  job.ExpectEqualCaches();
}

TEST(Stall, LimitZeroNeverFails) {
  TestJob job(2, Limits(10 * kS, 0));
  const OpId zero = job.Submit(0, Tensor("x"));
  job.Wait(0);
  job.RunFor(5000 * kS);
  EXPECT_FALSE(job.Of(0, zero).done());
  EXPECT_EQ(job.reports[1].size(), 9u) << "after 10, 20, 40 ... 2560 s";
}

TEST(Stall, WithoutTheCheckNothingIsReported) {
  ControllerConfig config = Limits();
  config.stall_check = false;
  TestJob job(2, config);
  const OpId zero = job.Submit(0, Tensor("x"));
  job.Wait(0);
  job.RunFor(1000 * kS);
  EXPECT_FALSE(job.Of(0, zero).done());
  EXPECT_TRUE(job.reports[0].empty());
}

TEST(Stall, WithoutTheCheckCrossedWaitsStillFail) {
  ControllerConfig config = Limits();
  config.stall_check = false;
  TestJob job(2, config);
  const OpId x = job.Submit(0, Tensor("x"));
  const OpId y = job.Submit(1, Tensor("y"));
  job.RunFor(5 * kMs);
  job.Wait(0);
  job.Wait(1);
  job.RunFor(1000 * kS);
  EXPECT_EQ(job.Of(0, x).status.code(), StatusCode::kStall);
  EXPECT_EQ(job.Of(1, y).status.code(), StatusCode::kStall);
  EXPECT_LE(job[0].round(), 3u);
}

TEST(Stall, ALongJoinIsNoStall) {
  TestJob job(2, Limits());
  job.Submit(0, OfOp(wire::Op::kJoin, "join"));
  job.Wait(0);
  job.RunFor(1000 * kS);
  EXPECT_TRUE(job.reports[0].empty());
  EXPECT_TRUE(job.reports[1].empty());
}

// ---- certain deadlock

class CrossedWaits : public ::testing::TestWithParam<std::tuple<bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(Cached, CrossedWaits, ::testing::Combine(::testing::Bool(), ::testing::Bool()));

TEST_P(CrossedWaits, FailAtOnce) {
  const auto [x_cached, y_cached] = GetParam();
  TestJob job(2, Limits());
  if (x_cached) job.SubmitAll(Tensor("x"));
  if (y_cached) job.SubmitAll(Tensor("y"));
  job.RunFor(5 * kMs);
  const OpId x = job.Submit(0, Tensor("x"));
  job.Wait(0);
  job.Settle();
  EXPECT_FALSE(job.Of(0, x).done());
  const OpId y = job.Submit(1, Tensor("y"));
  job.Wait(1);
  job.RunFor(50 * kMs);
  EXPECT_EQ(job.Of(0, x).status.code(), StatusCode::kStall) << job.Of(0, x).status.ToString();
  EXPECT_EQ(job.Of(1, y).status.code(), StatusCode::kStall);
  ExpectContains(job.Of(0, x).status.message(), "allreduce 'x' was submitted by rank 0 and not by rank 1");
  ExpectContains(job.Of(0, x).status.message(), "can never complete");
}

void CrossLater(int ranks, std::tuple<bool, bool> cached) {
  TestJob job(ranks, Limits());
  if (std::get<0>(cached)) job.SubmitAll(Tensor("x"));
  if (std::get<1>(cached)) job.SubmitAll(Tensor("y"));
  job.RunFor(5 * kMs);
  const OpId x = job.Submit(0, Tensor("x"));
  const OpId y = job.Submit(1, Tensor("y"));
  job.RunFor(5 * kMs);
  job.Wait(0);
  job.RunFor(5 * kMs);
  EXPECT_FALSE(job.Of(0, x).done()) << "rank 1 may still submit it";
  job.Wait(1);
  job.RunFor(150 * kMs);
  EXPECT_EQ(job.Of(0, x).status.code(), StatusCode::kStall);
  EXPECT_EQ(job.Of(1, y).status.code(), StatusCode::kStall);
}

TEST_P(CrossedWaits, OfEarlierOperationsFailAtOnce) { CrossLater(2, GetParam()); }

TEST_P(CrossedWaits, FailAlthoughAThirdRankComputes) { CrossLater(3, GetParam()); }

class Circles : public ::testing::TestWithParam<std::tuple<std::string, bool, int>> {};
INSTANTIATE_TEST_SUITE_P(AllAgreements, Circles,
                         ::testing::Combine(::testing::Values("bits", "leaders", "coordinator", "tree"),
                                            ::testing::Bool(), ::testing::Values(2, 3, 7)));

TEST_P(Circles, OfTwoRanksAreFoundWithAnyOtherRanks) {
  const auto [agreement, tick, ranks] = GetParam();
  ControllerConfig config = Limits();
  config.tick = tick;
  config.stall_check = false;  // no limits, no reports; circles are still found
  TestJob job(ranks, config, {.strategy = agreement});
  job.SubmitAll(Tensor("x"));
  job.SubmitAll(Tensor("y"));
  job.RunFor(5 * kMs);
  const OpId x = job.Submit(0, Tensor("x"));
  const OpId y = job.Submit(1, Tensor("y"));
  job.Wait(0);
  job.Wait(1);
  job.RunFor(200 * kMs);
  EXPECT_EQ(job.Of(0, x).status.code(), StatusCode::kStall);
  EXPECT_EQ(job.Of(1, y).status.code(), StatusCode::kStall);
}

// Both ranks wait only for x, which this round's gather answers. y and z, each pending on one rank only, are therefore
// not a deadlock.
TEST(Deadlock, ARankThatGetsAnAnswerInTheSameRoundIsNotStuck) {
  TestJob job(2, Limits());
  const OpId x0 = job.Submit(0, Tensor("x"));
  const OpId y0 = job.Submit(0, Tensor("y"));
  const OpId x1 = job.Submit(1, Tensor("x"));
  const OpId z1 = job.Submit(1, Tensor("z"));
  job.WaitFor(0, x0);
  job.WaitFor(1, x1);
  job.Settle();
  EXPECT_TRUE(job.Done({x0, x1}));
  const OpId z0 = job.Submit(0, Tensor("z"));
  const OpId y1 = job.Submit(1, Tensor("y"));
  job.RunFor(50 * kMs);
  EXPECT_TRUE(job.Done({y0, y1})) << job.Of(0, y0).status.ToString();
  EXPECT_TRUE(job.Done({z0, z1}));
}

class CommonWait : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Cached, CommonWait, ::testing::Bool());

TEST_P(CommonWait, ForAThirdRankThatComputesCostsTwoRoundsAtMost) {
  TestJob job(3, Limits());
  if (GetParam()) job.SubmitAll(Tensor("x"));
  job.RunFor(5 * kMs);
  const OpId zero = job.Submit(0, Tensor("x"));
  const OpId one = job.Submit(1, Tensor("x"));
  job.RunFor(5 * kMs);
  const uint64_t before = job[0].round();
  job.Wait(0);
  job.Wait(1);
  job.RunFor(5 * kS);
  EXPECT_LE(job[0].round(), before + 2);
  const OpId two = job.Submit(2, Tensor("x"));
  job.RunFor(50 * kMs);
  EXPECT_TRUE(job.Done({zero, one, two}));
}

TEST(Deadlock, ARankWithAnotherThreadIsNotStuck) {
  TestJob job(2, Limits());
  const OpId x = job.Submit(0, Tensor("x"));
  const OpId y = job.Submit(1, Tensor("y"));
  job.Wait(0);
  job.Wait(1, /*all=*/false);
  job.RunFor(1 * kS);
  EXPECT_FALSE(job.Of(0, x).done());
  const OpId x1 = job.Submit(1, Tensor("x"));
  job.StopWaiting(0);
  const OpId y0 = job.Submit(0, Tensor("y"));
  job.RunFor(50 * kMs);
  EXPECT_TRUE(job.Done({x, x1}));
  EXPECT_TRUE(job.Done({y0, y}));
}

TEST(Deadlock, TheSearchIsNotRepeatedWhileNothingChanges) {
  TestJob job(2, Limits(100 * kS));
  job.SubmitAll(Tensor("x"));
  job.RunFor(5 * kMs);
  job.Submit(0, Tensor("x"));
  job.Wait(0);
  job.RunFor(250 * kMs);
  const uint64_t rounds = job[0].counters().rounds;
  job.RunFor(50 * kS);
  EXPECT_EQ(job[0].counters().rounds, rounds);
  EXPECT_FALSE(job[0].closed());
}

PendingOp Op(const std::string& name, int size, std::vector<int> has) {
  PendingOp op{Tensor(name), RankSet(size), false, false};
  for (const int rank : has) op.has.Add(rank);
  return op;
}

TEST(Deadlock, IsAFixpointOverTheWholeSet) {
  const WaitingRank waits{true, ""}, runs{false, ""};
  const RankSet none(3);
  using Found = std::vector<size_t>;
  // A ring of three ranks.
  EXPECT_EQ(FindDeadlocked({Op("x", 3, {0}), Op("y", 3, {1}), Op("z", 3, {2})}, {waits, waits, waits}, none),
            (Found{0, 1, 2}));
  // Rank 2 runs, but x lacks rank 1 and y lacks rank 0, and these two ranks wait.
  EXPECT_EQ(FindDeadlocked({Op("x", 3, {0, 2}), Op("y", 3, {1, 2})}, {waits, waits, runs}, none), (Found{0, 1}));
  // x lacks only rank 2, which runs, so rank 0 is not stuck. Rank 1 is not stuck either: it may wait for rank 0.
  EXPECT_EQ(FindDeadlocked({Op("x", 3, {0, 1}), Op("y", 3, {1})}, {waits, waits, runs}, none), Found{});
  // All ranks have submitted x, so x can complete, and every rank may go on.
  EXPECT_EQ(FindDeadlocked({Op("x", 3, {0, 1, 2}), Op("y", 3, {0}), Op("z", 3, {1, 2})}, {waits, waits, waits}, none),
            Found{});
  // Rank 2 waits, but for none of the pending operations, so it will go on.
  EXPECT_EQ(FindDeadlocked({Op("x", 3, {0, 1})}, {waits, waits, waits}, none), Found{});
  // No operation lacks a joined rank.
  RankSet joined(3);
  joined.Add(2);
  EXPECT_EQ(FindDeadlocked({Op("x", 3, {0, 1})}, {waits, waits, waits}, joined), Found{});
  EXPECT_EQ(FindDeadlocked({Op("x", 3, {0}), Op("y", 3, {1})}, {waits, waits, waits}, joined), (Found{0, 1}));
  // An operation that this round agrees on or erases from the cache is not stuck.
  PendingOp moving = Op("x", 3, {0});
  moving.moving = true;
  EXPECT_EQ(FindDeadlocked({moving, Op("y", 3, {1})}, {waits, waits, runs}, none), Found{});
}

TEST(Stall, ReportsOfOneOperationComeAtDoublingIntervals) {
  PendingOp op = Op("x", 2, {0});
  op.stalled = true;
  StallInspector inspector(10 * kS, 600 * kS);
  std::vector<int64_t> waits;
  for (int64_t waited = 10; waited < 600; waited += 10) {  // one inspection every 10 s
    const auto findings = inspector.Inspect({op}, {{false, ""}, {false, ""}}, RankSet(2), true, (1000 + waited) * kS);
    if (findings.report.empty()) continue;
    waits.push_back(waited);
    ExpectContains(findings.report, "wait for more than " + std::to_string(waited) + " s for");
    EXPECT_EQ(findings.late_ranks, std::vector<int32_t>{1});
  }
  EXPECT_EQ(waits, (std::vector<int64_t>{10, 20, 40, 80, 160, 320}));
}

// Inspects, every 10 s, an operation that rank 1 lacks, with a limit of 60 s. Returns the number of failures of each
// inspection. `computes`: for each inspection, true if rank 1 computes.
std::vector<size_t> FailuresWhile(bool fail_computing, const std::vector<bool>& computes) {
  StallInspector inspector(10 * kS, 60 * kS, fail_computing);
  PendingOp op = Op("x", 2, {0});
  op.stalled = true;
  std::vector<size_t> failures;
  for (size_t look = 0; look < computes.size(); ++look) {
    const auto now_ns = static_cast<int64_t>(look + 1) * 10 * kS;
    const std::vector<WaitingRank> ranks = {{false, ""},
                                            {.all_waiting = false, .last_done = "", .computes = computes[look]}};
    failures.push_back(inspector.Inspect({op}, ranks, RankSet(2), true, now_ns).failures.size());
  }
  return failures;
}

TEST(Stall, TheDefaultLimitDoesNotCountWhileTheLateRankComputes) {
  std::vector<bool> computes(100, true);
  EXPECT_EQ(FailuresWhile(false, computes), std::vector<size_t>(100, 0));
  const std::vector<size_t> by_limit = FailuresWhile(true, computes);
  EXPECT_EQ(std::ranges::find(by_limit, size_t{1}) - by_limit.begin(), 5);
  // Rank 1 stops computing at inspection 50; the limit counts from there.
  for (size_t look = 50; look < computes.size(); ++look) computes[look] = false;
  const std::vector<size_t> later = FailuresWhile(false, computes);
  EXPECT_EQ(std::ranges::find(later, size_t{1}) - later.begin(), 55);
  // For a rank that never computes, the limit counts from the start.
  const std::vector<size_t> idle = FailuresWhile(false, std::vector<bool>(100, false));
  EXPECT_EQ(std::ranges::find(idle, size_t{1}) - idle.begin(), 5);
}

TEST(Stall, AReportNamesAComputingRankAndThatTheLimitDoesNotCount) {
  StallInspector inspector(10 * kS, 60 * kS);
  PendingOp op = Op("x", 2, {0});
  op.stalled = true;
  const std::vector<WaitingRank> ranks = {{false, ""}, {.all_waiting = false, .last_done = "", .computes = true}};
  std::string report = inspector.Inspect({op}, ranks, RankSet(2), true, 10 * kS).report;
  ExpectContains(report, "not by rank 1 (rank 1 has completed nothing yet and computes).");
  EXPECT_EQ(report.find("HOROCACHE_STALL_SHUTDOWN_TIME_SECONDS"), std::string::npos) << report;
  report = inspector.Inspect({op}, ranks, RankSet(2), true, 100 * kS).report;
  ExpectContains(report, "HOROCACHE_STALL_SHUTDOWN_TIME_SECONDS sets a limit");
}

TEST(Deadlock, TheErrorNamesTheOperationsAndTheRanksThatLackThem) {
  StallInspector inspector(10 * kS, 60 * kS);
  const WaitingRank waits{true, ""};
  const auto findings =
      inspector.Inspect({Op("x", 2, {0}), Op("y", 2, {1})}, {waits, waits}, RankSet(2), false, 100 * kS);
  ASSERT_EQ(findings.failures.size(), 2u);
  ExpectContains(findings.failures[0].message, "rank 1 waits, itself, for allreduce 'y', which rank 0 did not submit.");
  ExpectContains(findings.failures[1].message, "rank 0 waits, itself, for allreduce 'x', which rank 1 did not submit.");
}

TEST(Stall, AReportOfManyOperationsIsCut) {
  std::vector<PendingOp> ops;
  for (int i = 0; i < 1000; ++i) {
    ops.push_back(Op("t" + std::to_string(i), 2, {0}));
    ops.back().stalled = true;
  }
  StallInspector inspector(10 * kS, 60 * kS);
  const auto findings = inspector.Inspect(ops, {{false, ""}, {false, ""}}, RankSet(2), true, 100 * kS);
  ExpectContains(findings.report, "and 968 more.");
  EXPECT_LT(findings.report.size(), 10000u);
  EXPECT_TRUE(findings.failures.empty());
  EXPECT_EQ(inspector.Inspect(ops, {{false, ""}, {false, ""}}, RankSet(2), true, 150 * kS).failures.size(), 1000u);
}

TEST(Stall, AnInspectionFindsAConflictBetweenGroups) {
  PendingOp group{Group("g", {"a", "b"}), RankSet(2), true, false};
  group.has.Add(0);
  PendingOp alone = Op("b", 2, {1});
  const PendingOp other = Op("c", 2, {1});
  StallInspector inspector(10 * kS, 60 * kS);
  const auto findings =
      inspector.Inspect({group, other, alone}, {{false, ""}, {false, ""}}, RankSet(2), true, 100 * kS);
  ASSERT_EQ(findings.failures.size(), 2u);
  EXPECT_EQ(findings.failures[0].code, StatusCode::kMismatch);
  EXPECT_EQ(findings.failures[0].message,
            "tensor 'b' is pending as a part of allreduce 'g' on rank 0 and as a part of allreduce 'b' on rank 1. Form "
            "the same groups on all ranks.");
  EXPECT_EQ(findings.failures[1].signature.name, "b");
  alone.moving = true;
  EXPECT_TRUE(
      inspector.Inspect({group, alone}, {{false, ""}, {false, ""}}, RankSet(2), true, 100 * kS).failures.empty());
}

// ---- ranks that do not answer

TEST(Silence, OfAStoppedRankIsReportedAndEndsTheSet) {
  TestJob job(3, Limits());
  job.SubmitAll(Tensor("x"));
  job.RunFor(5 * kMs);
  job.stopped[1] = true;
  const OpId zero = job.Submit(0, Tensor("x"));
  const OpId two = job.Submit(2, Tensor("x"));
  job.Wait(0);
  job.Wait(2);
  job.RunFor(13 * kS);
  for (const size_t rank : {0u, 2u}) {
    ASSERT_EQ(job.reports[rank].size(), 1u) << "rank " << rank;
    ExpectContains(job.reports[rank][0], "rank 1 has not answered round");
  }
  job.RunFor(48 * kS);
  EXPECT_EQ(job.Of(0, zero).status.code(), StatusCode::kStall);
  EXPECT_EQ(job.Of(2, two).status.code(), StatusCode::kStall);
  ExpectContains(job.Of(0, zero).status.message(), "rank 1 has not answered round");
  EXPECT_TRUE(job[0].closed());
}

TEST(Silence, OfRankZeroIsReportedByTheOthers) {
  TestJob job(3, Limits());
  job.stopped[0] = true;
  const OpId one = job.Submit(1, Tensor("x"));
  job.Wait(1);
  job.RunFor(11 * kS);
  ASSERT_FALSE(job.reports[1].empty());
  ExpectContains(job.reports[1][0], "rank 0 has not answered round");
  job.RunFor(60 * kS);
  EXPECT_EQ(job.Of(1, one).status.code(), StatusCode::kStall);
}

TEST(Silence, DuringAGatherIsReported) {
  TestJob job(2, Limits());
  job.single_steps = true;
  const OpId zero = job.Submit(0, Tensor("x"));
  job.Wait(0);
  job.StepRank(0);
  job.StepRank(1);  // publishes its snapshot and does not take part in the gather
  job.hub.frames[0].clear();
  job.stopped[1] = true;
  job.single_steps = false;
  job.RunFor(11 * kS);
  ASSERT_FALSE(job.reports[0].empty());
  ExpectContains(job.reports[0][0], "rank 1 has not answered round");
  job.RunFor(60 * kS);
  EXPECT_EQ(job.Of(0, zero).status.code(), StatusCode::kStall);
}

TEST(Silence, OfARankThatContinuesInTimeHasNoEffect) {
  TestJob job(2, Limits());
  job.SubmitAll(Tensor("x"));
  job.RunFor(5 * kMs);
  job.stopped[1] = true;
  const OpId zero = job.Submit(0, Tensor("x"));
  job.Wait(0);
  job.RunFor(30 * kS);
  job.stopped[1] = false;
  const OpId one = job.Submit(1, Tensor("x"));
  job.RunFor(50 * kMs);
  EXPECT_TRUE(job.Done({zero, one}));
  EXPECT_FALSE(job[0].closed());
}

TEST(Silence, OfATickingRankIsReportedToo) {
  ControllerConfig config = Limits();
  config.tick = true;
  TestJob job(2, config);
  job.RunFor(5 * kMs);
  job.stopped[1] = true;
  job.RunFor(11 * kS);
  ASSERT_FALSE(job.reports[0].empty());
  ExpectContains(job.reports[0][0], "rank 1 has not answered round");
}

// The limits for the report and for the failure are equal: ranks give up as soon as they report.
class ShortLimit : public ::testing::TestWithParam<std::tuple<std::string, bool, int>> {};

INSTANTIATE_TEST_SUITE_P(AllAgreements, ShortLimit,
                         ::testing::Combine(::testing::Values("bits", "leaders", "coordinator", "tree"),
                                            ::testing::Bool(), ::testing::Values(2, 3)));

TEST_P(ShortLimit, AWaitForASlowRankIsNoSilence) {
  const auto [agreement, tick, ranks] = GetParam();
  ControllerConfig config = Limits(10 * kS, 10 * kS);
  config.tick = tick;
  TestJob job(ranks, config, {.strategy = agreement});
  job.SubmitAll(Tensor("x"));
  job.RunFor(5 * kMs);
  std::vector<OpId> ops(static_cast<size_t>(ranks));
  ops[0] = job.Submit(0, Tensor("x"));
  job.Wait(0);
  job.RunFor(2 * kS);
  for (int r = 1; r < ranks; ++r) ops[static_cast<size_t>(r)] = job.Submit(r, Tensor("x"));
  job.RunFor(50 * kMs);
  EXPECT_TRUE(job.Done(ops)) << job.Of(0, ops[0]).status.ToString();
  job.StopWaiting(0);
  const OpId late = job.Submit(0, Tensor("x"));
  job.Wait(0);
  job.RunFor(11 * kS);
  EXPECT_EQ(job.Of(0, late).status.code(), StatusCode::kStall);
  EXPECT_FALSE(job[0].closed());
}

}  // namespace
}  // namespace horocache::control
