#include "moe/printed_exchange.h"

#include <gtest/gtest.h>

#include <vector>

namespace horocache::moe {
namespace {

using Changes = PrintedExchange::Changes;
using Left = PrintedExchange::Rank::Left;
using Message = PrintedExchange::Message;
using Sent = PrintedExchange::Sent;

// Sets of ranks.
constexpr uint64_t kNone = 0, k0 = 1, k1 = 2, kAll3 = 7;

TEST(PrintedExchange, ARoundOfTwoHosts) {
  const PrintedExchange exchange(k0 | k1, {k0 | k1, k0}, {1, 1}, {});
  auto [rank, sent] = exchange.Begin(0);
  EXPECT_EQ(sent, (std::vector<Sent>{{0, Message::kBatch}, {1, Message::kBatch}}));
  EXPECT_EQ(rank.mu, 4);  // two results, the batch of rank 1, the own batch
  EXPECT_EQ(exchange.Take(0, 0, Message::kBatch, &rank), (std::vector<Sent>{{0, Message::kResult}}));
  EXPECT_EQ(exchange.Take(0, 1, Message::kBatch, &rank), (std::vector<Sent>{{1, Message::kResult}}));
  exchange.Take(0, 0, Message::kResult, &rank);
  EXPECT_FALSE(rank.armed);
  exchange.Take(0, 1, Message::kResult, &rank);
  EXPECT_EQ(rank.left, Left::kDone);
  EXPECT_FALSE(exchange.IsMiscounted(0, rank));
}

// Rank 0 waits for a batch that rank 1 never sends, and no countdown ends the wait.
TEST(PrintedExchange, AHostWaitsForBatchesThatRanksWithoutTokensForItDoNotSend) {
  const auto waits = [](const Changes& changes) {
    const PrintedExchange exchange(k0, {kNone, kNone}, {1, 1}, changes);
    auto [host, sent] = exchange.Begin(0);
    const auto [other, batches] = exchange.Begin(1);
    EXPECT_EQ(other.left, Left::kDone);
    for (const Sent& each : batches) exchange.Take(each.to, 1, each.message, &host);
    return host.left == Left::kNo && !host.armed;
  };
  EXPECT_TRUE(waits({}));
  EXPECT_FALSE(waits({.batch_to_every_host = true}));
}

// Rank 1 has tokens for host 0, which leaves by its countdown. Rank 1 is not a host, so that host 0 does not tell it.
TEST(PrintedExchange, ARankWithoutExpertsIsNotToldThatItsHostLeft) {
  const auto told = [](const Changes& changes) {
    const PrintedExchange exchange(k0, {kNone, k0}, {1, 1}, changes);
    PrintedExchange::Rank host = exchange.Begin(0).first;
    return exchange.TimeOut(0, &host);
  };
  EXPECT_EQ(told({}), std::vector<Sent>{});
  EXPECT_EQ(told({.empty_to_every_rank = true}), (std::vector<Sent>{{1, Message::kEmpty}}));
}

// Rank 0 has tokens for rank 1. The empty message of rank 2, which it has asked for nothing, takes the place of the
// result.
TEST(PrintedExchange, AnEmptyMessageOfAnyRankCountsAsAResult) {
  const auto miscounts = [](const Changes& changes) {
    const PrintedExchange exchange(kAll3, {k1, k0, k0}, {2, 2, 2}, changes);
    PrintedExchange::Rank rank = exchange.Begin(0).first;
    exchange.Take(0, 1, Message::kBatch, &rank);
    exchange.Take(0, 2, Message::kBatch, &rank);
    exchange.Take(0, 2, Message::kEmpty, &rank);
    return rank.left == Left::kDone;
  };
  EXPECT_TRUE(miscounts({}));
  EXPECT_FALSE(miscounts({.state_per_peer = true}));
}

TEST(PrintedExchange, ACountdownForMoreResultsThanThereAreNeverStarts) {
  const auto armed = [](const Changes& changes) {
    return PrintedExchange(k0, {kNone, k0}, {1, 1}, changes).Begin(0).first.armed;
  };
  EXPECT_FALSE(armed({}));
  EXPECT_TRUE(armed({.epsilon_clamped = true}));
}

// The paper's own example, with epsilon 0 beside epsilon 1.
TEST(PrintedExchange, M9WithEpsilonZeroARankLeavesWithoutAMessageToTheOneThatWaits) {
  const auto told = [](const Changes& changes) {
    const PrintedExchange exchange(k0 | k1, {k1, k0}, {0, 1}, changes);
    PrintedExchange::Rank first = exchange.Begin(0).first;
    EXPECT_TRUE(first.armed);
    return exchange.TimeOut(0, &first);
  };
  EXPECT_EQ(told({}), std::vector<Sent>{});
  EXPECT_EQ(told({.empty_for_any_epsilon = true}), (std::vector<Sent>{{1, Message::kEmpty}}));
}

}  // namespace
}  // namespace horocache::moe
