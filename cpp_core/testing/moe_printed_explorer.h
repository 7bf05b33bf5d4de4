// All schedules of one round of the printed one-sided exchange (moe/printed_exchange.h), with up to 3 ranks.
//
// The assumptions of its theorem 3.1: no rank fails, and messages between two ranks arrive in the order in which they
// are sent. A countdown may end at any moment once it runs.
#pragma once

#include <cstdint>
#include <vector>

#include "moe/printed_exchange.h"

namespace horocache::testing {

struct PrintedExploration {
  uint64_t states = 0;
  bool deadlocks = false;  // in some schedule a rank waits for ever
  bool miscounts = false;  // in some schedule a rank leaves without a result and does not notice
};

PrintedExploration ExplorePrinted(const moe::PrintedExchange& exchange);

// A world without `Changes`.
struct PrintedCase {
  uint64_t hosts = 0;
  std::vector<uint64_t> routed;
  std::vector<int> epsilon;
  bool IsUniform() const;
};

// All cases of two ranks, with hosts {0} and {0, 1}: every routing and epsilon.
std::vector<PrintedCase> AllPrintedCasesOfTwoRanks();
// For each of `count` random hosts and routings of three ranks, the uniform epsilons 0, 1 and 2, or one random vector.
std::vector<PrintedCase> RandomPrintedCasesOfThreeRanks(uint64_t seed, int count, bool uniform);

// Nothing changed, and then one change more each; the last has two more.
std::vector<moe::PrintedExchange::Changes> CumulativeChanges();

}  // namespace horocache::testing
