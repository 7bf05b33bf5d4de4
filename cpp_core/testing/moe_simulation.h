// One-sided exchanges (moe/exchange.h) of many ranks over many rounds, in virtual time.
//
// Every rank polls the words that are visible to it, as a window does (moe/window.h): first the releases, then the
// cells, and the releases count after the cells. A written word becomes visible after a random delay, a release not
// before the cells that its rank wrote. To serve a batch takes time, during which its cell is read; a cell that is
// overwritten meanwhile, or has another round's tokens, is a fault.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "moe/exchange.h"

namespace horocache::testing {

struct ExchangeWorld {
  std::vector<bool> hosts;
  uint32_t depth = 2;
  uint32_t rounds = 1;
  uint64_t seed = 0;
  std::function<moe::Plan(int rank, uint32_t round)> plan;
  // How long the rank is away before it enters the round; empty: not at all.
  std::function<int64_t(int rank, uint32_t round)> pause;
  int64_t serve_ns = 1;               // for each batch
  int64_t max_delay_ns = 0;           // until a written word is visible
  std::vector<int64_t> dies_at_ns;    // by rank; empty or kForever: it does not die
  int64_t notice_ns = moe::kForever;  // from a death until the other ranks learn of it; kForever: never

  int ranks() const { return static_cast<int>(hosts.size()); }
};

// One round of one rank.
struct ExchangeRecord {
  int64_t entered_ns = 0, left_ns = moe::kForever;  // kForever: has not left it
  std::vector<int32_t> rows;
  std::vector<moe::Outcome> outcomes;  // by host
  std::vector<bool> served;            // by owner of the batch
};

struct ExchangeHistory {
  std::vector<std::vector<ExchangeRecord>> ranks;  // by rank and round, from 0
  std::string fault;                               // empty, or the first one

  // Rows with this outcome, of all ranks or of one, in all rounds.
  int64_t Rows(moe::Outcome outcome, int rank = -1) const;
  int64_t Sent(int rank = -1) const;
};

// Ends when no rank can do anything more.
ExchangeHistory Simulate(const ExchangeWorld& world);

// Checks that every rank that lives has left all rounds, and that of each batch with tokens exactly one thing became,
// which agrees with what its host did. Returns what is wrong, or nothing.
std::string CheckExchanges(const ExchangeWorld& world, const ExchangeHistory& history);

// A world of 2 to 64 ranks; everything else is drawn.
ExchangeWorld RandomExchangeWorld(uint64_t seed);

}  // namespace horocache::testing
