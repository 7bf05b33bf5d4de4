// All schedules of a few rounds of the one-sided exchange (moe/exchange.h), with 1 to 4 ranks.
//
// A state has the machines of all ranks and what is under way between them. A rank's writes become visible to another
// one at any later moment: the words of a batch, of a result and of a release are separate, and the only order is that
// a release shows no sooner than the cells that its rank wrote before. A time-out may fire at any moment once it is
// armed. A rank may die at any moment; then its writes may stay invisible, and each other rank learns of the death at
// any later moment. Ranks enter their rounds at any moment.
//
// Checked in every state and step:
// * a rank inside a round goes on in the end: the only states without a further step are those in which every rank that
//   lives has left all rounds. The writes of a dead rank do not count as steps, because they may stay invisible;
// * when a rank leaves, each batch with tokens has one outcome, and its cause is true: delivered if its result came and
//   the batch was served once; otherwise the host had left, is lost, was too far behind, or this rank had a time-out;
// * a rank's own tokens are always delivered;
// * without time-outs and deaths, all tokens are;
// * a cell is written only after its reader has left the round that used it before;
// * an event that is reported twice changes nothing.
//
// A step is an event and all that the rank then does by itself. That leaves out no behaviour: a rank's own steps read
// only its own state, and others see its writes at any later moment in any case. Local steps are looked up after the
// first time, and a state is 16 bytes, so that a core explores about a million states a second.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "moe/exchange.h"

namespace horocache::testing {

constexpr int kMaxExploredRanks = 4;
constexpr int kMaxExploredRounds = 3;

struct ExchangeCase {
  std::vector<bool> hosts;
  uint32_t depth = 1;
  // By round and rank. Each duration is kForever or 1; 1 stands for every finite one.
  std::vector<std::vector<moe::Plan>> plans;
  int deaths = 0;  // how many ranks may die

  int ranks() const { return static_cast<int>(hosts.size()); }
  std::string Describe() const;
};

struct Exploration {
  uint64_t states = 0;
  bool complete = true;                        // false: `max_states` was not enough
  std::array<bool, moe::kNumOutcomes> seen{};  // outcomes in some schedule
  std::string fault;                           // empty, or the first violation with the steps to it
};

Exploration Explore(const ExchangeCase& tested, uint64_t max_states);

// A case of this number of ranks and rounds; everything else is drawn.
ExchangeCase RandomExchangeCase(uint64_t seed, int ranks, int rounds);

}  // namespace horocache::testing
