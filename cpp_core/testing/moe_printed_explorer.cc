#include "testing/moe_printed_explorer.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "testing/moe_state_set.h"
#include "testing/seeded_random.h"

namespace horocache::testing {
namespace {

using moe::PrintedExchange;
using PrintedMessage = PrintedExchange::Message;
using PrintedRank = PrintedExchange::Rank;

constexpr int kMaxPrintedRanks = 3;

// A message of each kind at most is under way between two ranks, and they are sent in the order of their kinds.
struct PrintedWorld {
  std::array<PrintedRank, kMaxPrintedRanks> ranks;
  uint32_t under_way = 0;

  static uint32_t Bit(int from, int to, PrintedMessage message) {
    return uint32_t{1} << ((from * kMaxPrintedRanks + to) * PrintedExchange::kNumMessages + static_cast<int>(message));
  }
};

class PrintedExplorer {
 public:
  explicit PrintedExplorer(const PrintedExchange& exchange) : exchange_(exchange) {
    if (exchange.ranks() > kMaxPrintedRanks) std::abort();
  }

  PrintedExploration Run() {
    PrintedWorld world;
    for (int rank = 0; rank < exchange_.ranks(); ++rank) {
      auto [state, sent] = exchange_.Begin(rank);
      world.ranks[static_cast<size_t>(rank)] = state;
      Put(rank, sent, &world);
    }
    Visit(world);
    while (!open_.empty()) {
      const PrintedWorld next = open_.back();
      open_.pop_back();
      Expand(next);
    }
    found_.states = seen_.size();
    return found_;
  }

 private:
  static void Put(int from, const std::vector<PrintedExchange::Sent>& sent, PrintedWorld* world) {
    for (const auto& [to, message] : sent) world->under_way |= PrintedWorld::Bit(from, to, message);
  }

  void Visit(PrintedWorld world) {
    for (int to = 0; to < exchange_.ranks(); ++to) {
      if (world.ranks[static_cast<size_t>(to)].left == PrintedRank::Left::kNo) continue;
      for (int from = 0; from < exchange_.ranks(); ++from) world.under_way &= ~Messages(from, to);
    }
    StateSet::Key key = {1, world.under_way};
    for (const PrintedRank& rank : world.ranks) {
      const auto counts = static_cast<uint64_t>((rank.mu + 8) << 4 | (rank.xi + 8));
      const uint64_t flags = uint64_t{rank.armed} << 2 | static_cast<uint64_t>(rank.left);
      key[0] = key[0] << 18 | counts << 9 | flags << 6 | rank.unserved << 3 | rank.got;
    }
    if (seen_.Insert(key)) open_.push_back(world);
  }

  static uint32_t Messages(int from, int to) {
    return PrintedWorld::Bit(from, to, PrintedMessage::kBatch) | PrintedWorld::Bit(from, to, PrintedMessage::kResult) |
           PrintedWorld::Bit(from, to, PrintedMessage::kEmpty);
  }

  void Expand(const PrintedWorld& world) {
    bool goes_on = false, waits = false;
    for (int rank = 0; rank < exchange_.ranks(); ++rank) {
      const PrintedRank& state = world.ranks[static_cast<size_t>(rank)];
      if (state.left != PrintedRank::Left::kNo) {
        found_.miscounts |= exchange_.IsMiscounted(rank, state);
        continue;
      }
      waits = true;
      for (int from = 0; from < exchange_.ranks(); ++from) goes_on |= Deliver(world, from, rank);
      if (!state.armed) continue;
      goes_on = true;
      PrintedWorld next = world;
      Put(rank, exchange_.TimeOut(rank, &next.ranks[static_cast<size_t>(rank)]), &next);
      Visit(next);
    }
    found_.deadlocks |= waits && !goes_on;
  }

  bool Deliver(const PrintedWorld& world, int from, int to) {
    for (int kind = 0; kind < PrintedExchange::kNumMessages; ++kind) {
      const auto message = static_cast<PrintedMessage>(kind);
      if ((world.under_way & PrintedWorld::Bit(from, to, message)) == 0) continue;
      PrintedWorld next = world;
      next.under_way &= ~PrintedWorld::Bit(from, to, message);
      Put(to, exchange_.Take(to, from, message, &next.ranks[static_cast<size_t>(to)]), &next);
      Visit(next);
      return true;
    }
    return false;
  }

  const PrintedExchange& exchange_;
  StateSet seen_;
  std::vector<PrintedWorld> open_;
  PrintedExploration found_;
};

}  // namespace

PrintedExploration ExplorePrinted(const PrintedExchange& exchange) { return PrintedExplorer(exchange).Run(); }

bool PrintedCase::IsUniform() const {
  return std::all_of(epsilon.begin(), epsilon.end(), [this](int each) { return each == epsilon[0]; });
}

std::vector<PrintedCase> AllPrintedCasesOfTwoRanks() {
  std::vector<PrintedCase> cases;
  for (const uint64_t hosts : {uint64_t{1}, uint64_t{3}}) {
    for (uint64_t bits = 0; bits < 64; ++bits) {
      const std::vector<uint64_t> routed = {bits & 3, bits >> 2 & 3};
      if (((routed[0] | routed[1]) & ~hosts) != 0) continue;
      cases.push_back({hosts, routed, {static_cast<int>(bits >> 4 & 1), static_cast<int>(bits >> 5 & 1)}});
    }
  }
  return cases;
}

std::vector<PrintedCase> RandomPrintedCasesOfThreeRanks(uint64_t seed, int count, bool uniform) {
  SeededRandom random(seed);
  const auto drawn = [&random](uint64_t bound) { return static_cast<int>(random.Below(bound)); };
  std::vector<PrintedCase> cases;
  for (int i = 0; i < count; ++i) {
    PrintedCase one;
    one.hosts = 1 + random.Below(7);
    for (int rank = 0; rank < 3; ++rank) one.routed.push_back(random.Below(8) & one.hosts);
    if (!uniform) {
      one.epsilon = {drawn(3), drawn(3), drawn(3)};
      cases.push_back(one);
      continue;
    }
    for (int epsilon = 0; epsilon < 3; ++epsilon) {
      one.epsilon.assign(3, epsilon);
      cases.push_back(one);
    }
  }
  return cases;
}

std::vector<PrintedExchange::Changes> CumulativeChanges() {
  return {
      {},
      {.batch_to_every_host = true},
      {.batch_to_every_host = true, .empty_to_every_rank = true},
      {.batch_to_every_host = true, .empty_to_every_rank = true, .state_per_peer = true},
      {.batch_to_every_host = true,
       .empty_to_every_rank = true,
       .state_per_peer = true,
       .epsilon_clamped = true,
       .empty_for_any_epsilon = true},
  };
}

}  // namespace horocache::testing
