#include "moe/exchange.h"

#include <gtest/gtest.h>

#include <vector>

namespace horocache::moe {
namespace {

using Act = Exchange::Act;

constexpr int64_t kSecond = 1'000'000'000;

Exchange::Step Wait(int64_t until_ns = kForever) { return {Act::kWait, -1, until_ns}; }
Exchange::Step Step(Act act, int peer) { return {act, peer, kForever}; }
Exchange::Step Leaves() { return {Act::kLeave, -1, kForever}; }

// Two hosts in their first round, each with tokens for the other one only.
Exchange Pair(uint32_t depth, Plan plan) {
  Exchange exchange(0, {true, true}, depth);
  plan.rows = {0, 5};
  exchange.Enter(plan, 0);
  return exchange;
}

TEST(OneSidedExchange, ARoundWithoutFaults) {
  Exchange rank(0, {true, true}, 1);
  rank.Enter({.rows = {3, 5}, .epsilon = 1}, 0);
  EXPECT_EQ(rank.Next(0), Step(Act::kSend, 0));
  EXPECT_EQ(rank.Next(0), Step(Act::kSend, 1));
  EXPECT_EQ(rank.Next(0), Step(Act::kServe, 0));
  EXPECT_EQ(rank.Next(0), Step(Act::kTake, 0));
  EXPECT_EQ(rank.Next(0), Wait());
  rank.OnBatch(1, true);
  EXPECT_EQ(rank.Next(0), Step(Act::kServe, 1));
  EXPECT_EQ(rank.Next(0), Wait());
  EXPECT_TRUE(rank.Awaits(1));
  rank.OnResult(1);
  EXPECT_EQ(rank.Next(0), Step(Act::kTake, 1));
  EXPECT_EQ(rank.Next(0), Leaves());
  EXPECT_EQ(rank.outcome(1), Outcome::kDelivered);
  EXPECT_EQ(rank.released(0), 1u);
}

TEST(OneSidedExchange, TheCountdownStartsWithTheLastResultInsistedOn) {
  Exchange rank(0, {true, true, true}, 1);
  rank.Enter({.rows = {1, 1, 1}, .epsilon = 1, .tau_ns = kSecond}, 0);
  while (rank.Next(10).act != Act::kWait) {
  }
  EXPECT_EQ(rank.Next(10), Wait());
  rank.OnResult(2);
  EXPECT_EQ(rank.Next(20), Step(Act::kTake, 2));
  EXPECT_EQ(rank.Next(20), Wait(20 + kSecond));
  rank.OnBatch(1, true);
  // Later arrivals do not move the end of the countdown, and come before it.
  EXPECT_EQ(rank.Next(20 + kSecond), Step(Act::kServe, 1));
  EXPECT_EQ(rank.Next(20 + kSecond), Leaves());
  EXPECT_EQ(rank.outcome(1), Outcome::kOwnTimeout);
  EXPECT_EQ(rank.outcome(2), Outcome::kDelivered);
}

TEST(OneSidedExchange, TheCountdownStartsAfterTheRanksOwnBatch) {
  Exchange rank(0, {true, true}, 1);
  rank.Enter({.rows = {3, 5}, .epsilon = 0, .tau_ns = kSecond}, 0);
  EXPECT_EQ(rank.Next(0), Step(Act::kSend, 0));
  EXPECT_EQ(rank.Next(0), Step(Act::kSend, 1));
  EXPECT_EQ(rank.Next(0), Step(Act::kServe, 0));
  EXPECT_EQ(rank.Next(100), Step(Act::kTake, 0));
  EXPECT_EQ(rank.Next(100), Wait(100 + kSecond));
}

TEST(OneSidedExchange, ALargerEpsilonThanThereAreResultsMeansAllOfThem) {
  Exchange rank = Pair(1, {.epsilon = 7, .tau_ns = kSecond});
  EXPECT_EQ(rank.Next(0), Step(Act::kSend, 1));
  EXPECT_EQ(rank.Next(0), Wait());
  rank.OnResult(1);
  EXPECT_EQ(rank.Next(5), Step(Act::kTake, 1));
  EXPECT_EQ(rank.Next(5), Wait(5 + kSecond));
}

TEST(OneSidedExchange, TheLimitEndsAnyRound) {
  Exchange rank = Pair(1, {.epsilon = 1, .limit_ns = kSecond});
  EXPECT_EQ(rank.Next(0), Step(Act::kSend, 1));
  EXPECT_EQ(rank.Next(0), Wait(kSecond));
  EXPECT_EQ(rank.Next(kSecond), Leaves());
  EXPECT_EQ(rank.outcome(1), Outcome::kOwnTimeout);
}

TEST(OneSidedExchange, AReleaseAnswersEveryWaitForItsRank) {
  Exchange rank = Pair(1, {.epsilon = 1});
  EXPECT_EQ(rank.Next(0), Step(Act::kSend, 1));
  rank.OnReleased(1, 1);
  EXPECT_EQ(rank.Next(0), Leaves());
  EXPECT_EQ(rank.outcome(1), Outcome::kHostLeft);
}

TEST(OneSidedExchange, AResultBeforeTheReleaseIsTaken) {
  Exchange rank = Pair(1, {.epsilon = 1});
  EXPECT_EQ(rank.Next(0), Step(Act::kSend, 1));
  rank.OnResult(1);
  rank.OnReleased(1, 1);
  EXPECT_EQ(rank.Next(0), Step(Act::kTake, 1));
  EXPECT_EQ(rank.Next(0), Leaves());
  EXPECT_EQ(rank.outcome(1), Outcome::kDelivered);
}

TEST(OneSidedExchange, ALostRankIsNotWaitedForInThisRoundNorInLaterOnes) {
  Exchange rank = Pair(1, {.epsilon = 1});
  EXPECT_EQ(rank.Next(0), Step(Act::kSend, 1));
  rank.OnLost(1);
  EXPECT_EQ(rank.Next(0), Leaves());
  EXPECT_EQ(rank.outcome(1), Outcome::kLostRank);
  rank.Enter({.rows = {2, 5}, .epsilon = 1}, 0);
  EXPECT_EQ(rank.Next(0), Step(Act::kSend, 0));
  EXPECT_EQ(rank.Next(0), Step(Act::kServe, 0));
  EXPECT_EQ(rank.Next(0), Step(Act::kTake, 0));
  EXPECT_EQ(rank.Next(0), Leaves());
  EXPECT_EQ(rank.outcome(1), Outcome::kLostRank);
}

// Leaves the first round by its limit, and enters the second one with tokens for a host that is still in the first.
Exchange OneRoundAhead(bool wait_for_room, int64_t limit_ns) {
  Exchange rank = Pair(1, {.epsilon = 1, .limit_ns = 1});
  rank.Next(0);
  EXPECT_EQ(rank.Next(1), Leaves());
  rank.Enter({.rows = {0, 5}, .epsilon = 1, .limit_ns = limit_ns, .wait_for_room = wait_for_room}, 1);
  return rank;
}

TEST(OneSidedExchange, ABatchWaitsForItsCell) {
  Exchange rank = OneRoundAhead(/*wait_for_room=*/true, kForever);
  EXPECT_EQ(rank.Next(1), Wait());
  EXPECT_TRUE(rank.AwaitsRoom(1));
  rank.OnReleased(1, 1);
  EXPECT_EQ(rank.Next(1), Step(Act::kSend, 1));
}

TEST(OneSidedExchange, ABatchWithoutACellIsDroppedWhenTheRankHasNothingElseToWaitFor) {
  Exchange rank = OneRoundAhead(/*wait_for_room=*/false, kSecond);
  EXPECT_EQ(rank.Next(1), Wait(1 + kSecond)) << "the batch of rank 1 has not come";
  rank.OnBatch(1, false);
  EXPECT_EQ(rank.Next(1), Leaves());
  EXPECT_EQ(rank.outcome(1), Outcome::kRingFull);
}

// Each of two ranks has come to round 2 before it saw the other one leave round 1. If they dropped their batches for
// good, each would wait for the other one's.
TEST(OneSidedExchange, WithoutWaitingForRoomTwoRanksDoNotWaitForEachOthersDroppedBatch) {
  Exchange rank = OneRoundAhead(/*wait_for_room=*/false, kForever);
  EXPECT_EQ(rank.Next(1), Wait());
  EXPECT_TRUE(rank.AwaitsRoom(1));
  rank.OnReleased(1, 1);
  EXPECT_EQ(rank.Next(1), Step(Act::kSend, 1));
}

TEST(OneSidedExchange, ARoundLeavesNothingBehindForTheNextOne) {
  Exchange one = Pair(2, {.epsilon = 1, .limit_ns = 1}), other = one;
  one.Next(0);
  one.OnBatch(1, true);
  one.OnResult(1);
  while (one.inside()) one.Next(1);
  other.Leave();
  EXPECT_FALSE(one == other);
  one.Enter({.rows = {1, 1}, .epsilon = 1}, 2);
  other.Enter({.rows = {1, 1}, .epsilon = 1}, 2);
  EXPECT_TRUE(one == other);
}

}  // namespace
}  // namespace horocache::moe
