#include "testing/moe_simulation.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <utility>

#include "testing/seeded_random.h"

namespace horocache::testing {
namespace {

using moe::Exchange;
using moe::kForever;
using moe::Outcome;
using moe::Plan;
using ExchangeAct = Exchange::Act;

// A word of a cell, or a release. Round 0: not written.
struct SeenWord {
  uint32_t round = 0;
  bool has_rows = false;
};

// Two ranks: what one of them has written for the other.
struct RankLink {
  std::vector<SeenWord> batches, results;                 // as the reader sees them
  std::vector<uint32_t> batch_payloads, result_payloads;  // the rounds of the tokens that are in the cells
  uint32_t released = 0;
  int64_t visible_ns = 0;  // when the last cell is
};

enum class WorldEventKind : uint8_t { kWake, kEnter, kBatch, kResult, kReleased, kDie, kLost };
struct WorldEvent {
  int64_t at_ns = 0;
  uint64_t number = 0;  // events of one moment come in the order in which they were made
  WorldEventKind kind = WorldEventKind::kWake;
  int rank = 0;  // to which it comes
  int from = 0;
  SeenWord word;
  bool operator>(const WorldEvent& other) const {
    return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number;
  }
};

class ExchangeSimulator {
 public:
  explicit ExchangeSimulator(const ExchangeWorld& world) : world_(world), random_(world.seed) {
    const auto size = static_cast<size_t>(ranks());
    for (int rank = 0; rank < ranks(); ++rank) ranks_.emplace_back(Exchange(rank, world.hosts, world.depth));
    links_.resize(size * size);
    for (RankLink& link : links_) {
      link.batches.resize(world.depth);
      link.results.resize(world.depth);
      link.batch_payloads.resize(world.depth);
      link.result_payloads.resize(world.depth);
    }
    history_.ranks.resize(size);
  }

  ExchangeHistory Run() {
    for (int rank = 0; rank < ranks(); ++rank) {
      ScheduleEntry(rank);
      if (world_.dies_at_ns.empty()) continue;
      const int64_t dies_ns = world_.dies_at_ns[static_cast<size_t>(rank)];
      if (dies_ns != kForever) Push({.at_ns = dies_ns, .kind = WorldEventKind::kDie, .rank = rank});
    }
    while (!events_.empty() && history_.fault.empty()) {
      const WorldEvent event = events_.top();
      events_.pop();
      now_ns_ = event.at_ns;
      Handle(event);
    }
    return std::move(history_);
  }

 private:
  struct Rank {
    explicit Rank(Exchange made) : exchange(std::move(made)) {}
    Exchange exchange;
    bool dead = false;
    std::vector<bool> knows_dead;
    Exchange::Step step;  // which it is in until busy_until_ns
    int64_t busy_until_ns = 0;
  };

  int ranks() const { return world_.ranks(); }
  RankLink& LinkOf(int from, int to) { return links_[static_cast<size_t>(from * ranks() + to)]; }
  Rank& At(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  ExchangeRecord& Record(int rank) { return history_.ranks[static_cast<size_t>(rank)].back(); }
  size_t Slot(uint32_t round) const { return round % world_.depth; }

  void Push(WorldEvent event) {
    event.number = ++events_made_;
    events_.push(event);
  }

  void Fail(int rank, const std::string& what) {
    if (!history_.fault.empty()) return;
    history_.fault = "rank " + std::to_string(rank) + ", round " + std::to_string(At(rank).exchange.round()) + ", at " +
                     std::to_string(now_ns_) + ": " + what;
  }

  void ScheduleEntry(int rank) {
    const uint32_t round = At(rank).exchange.round() + 1;
    if (round > world_.rounds) return;
    const int64_t pause_ns = world_.pause ? world_.pause(rank, round) : 0;
    Push({.at_ns = now_ns_ + pause_ns, .kind = WorldEventKind::kEnter, .rank = rank});
  }

  void Handle(const WorldEvent& event) {
    Rank& rank = At(event.rank);
    if (rank.dead) return;
    switch (event.kind) {
      case WorldEventKind::kWake:
        break;
      case WorldEventKind::kEnter: {
        const Plan plan = world_.plan(event.rank, rank.exchange.round() + 1);
        history_.ranks[static_cast<size_t>(event.rank)].push_back(
            {.entered_ns = now_ns_, .rows = plan.rows, .served = std::vector<bool>(world_.hosts.size(), false)});
        rank.exchange.Enter(plan, now_ns_);
        break;
      }
      case WorldEventKind::kBatch:
        See(event.word, &LinkOf(event.from, event.rank).batches);
        break;
      case WorldEventKind::kResult:
        See(event.word, &LinkOf(event.from, event.rank).results);
        break;
      case WorldEventKind::kReleased: {
        uint32_t& released = LinkOf(event.from, event.rank).released;
        released = std::max(released, event.word.round);
        break;
      }
      case WorldEventKind::kDie:
        rank.dead = true;
        for (int peer = 0; peer < ranks() && world_.notice_ns != kForever; ++peer) {
          Push({.at_ns = now_ns_ + world_.notice_ns, .kind = WorldEventKind::kLost, .rank = peer, .from = event.rank});
        }
        return;
      case WorldEventKind::kLost:
        rank.exchange.OnLost(event.from);
        break;
    }
    Continue(event.rank);
  }

  // A word never becomes visible after a later one of the same cell.
  void See(const SeenWord& word, std::vector<SeenWord>* cells) const {
    SeenWord& cell = (*cells)[Slot(word.round)];
    if (word.round > cell.round) cell = word;
  }

  void Poll(int reader) {
    Exchange& exchange = At(reader).exchange;
    for (int from = 0; from < ranks(); ++from) {
      if (from == reader) continue;
      const RankLink& link = LinkOf(from, reader);
      const SeenWord& batch = link.batches[Slot(exchange.round())];
      if (batch.round == exchange.round()) exchange.OnBatch(from, batch.has_rows);
      if (link.results[Slot(exchange.round())].round == exchange.round()) exchange.OnResult(from);
      exchange.OnReleased(from, link.released);
    }
  }

  // Goes on until the rank is busy, waits, or has left.
  void Continue(int number) {
    Rank& rank = At(number);
    if (now_ns_ < rank.busy_until_ns) return;
    Finish(number);
    while (rank.exchange.inside()) {
      Poll(number);
      const Exchange::Step step = rank.exchange.Next(now_ns_);
      if (step.act == ExchangeAct::kSend) {
        Send(number, step.peer);
      } else if (step.act == ExchangeAct::kTake) {
        const uint32_t round = rank.exchange.round();
        const uint32_t found = LinkOf(step.peer, number).result_payloads[Slot(round)];
        if (found != round) Fail(number, "takes a result of round " + std::to_string(found));
      } else if (step.act == ExchangeAct::kServe) {
        rank.step = step;
        rank.busy_until_ns = now_ns_ + world_.serve_ns;
        Push({.at_ns = rank.busy_until_ns, .kind = WorldEventKind::kWake, .rank = number});
        return;
      } else if (step.act == ExchangeAct::kLeave) {
        Leave(number);
      } else {
        if (step.until_ns != kForever) Push({.at_ns = step.until_ns, .kind = WorldEventKind::kWake, .rank = number});
        return;
      }
    }
  }

  int64_t Delay() {
    return now_ns_ + static_cast<int64_t>(random_.Below(static_cast<uint64_t>(world_.max_delay_ns) + 1));
  }

  void Show(WorldEventKind kind, int from, int to, const SeenWord& word) {
    if (from == to) return;
    RankLink& link = LinkOf(from, to);
    int64_t at_ns = Delay();
    if (kind == WorldEventKind::kReleased) {
      at_ns = std::max(at_ns, link.visible_ns);
    } else {
      link.visible_ns = std::max(at_ns, link.visible_ns);
    }
    Push({.at_ns = at_ns, .kind = kind, .rank = to, .from = from, .word = word});
  }

  void Send(int rank, int host) {
    const uint32_t round = At(rank).exchange.round();
    const bool has_rows = Record(rank).rows[static_cast<size_t>(host)] > 0;
    LinkOf(rank, host).batch_payloads[Slot(round)] = round;
    Show(WorldEventKind::kBatch, rank, host, {round, has_rows});
  }

  // Of a batch that was served until now: its result.
  void Finish(int rank) {
    Exchange::Step step = std::exchange(At(rank).step, {});
    if (step.act != ExchangeAct::kServe) return;
    const uint32_t round = At(rank).exchange.round();
    const uint32_t found = LinkOf(step.peer, rank).batch_payloads[Slot(round)];
    if (found != round) Fail(rank, "serves a batch of round " + std::to_string(found));
    if (Record(rank).served[static_cast<size_t>(step.peer)]) Fail(rank, "serves a batch twice");
    Record(rank).served[static_cast<size_t>(step.peer)] = true;
    LinkOf(rank, step.peer).result_payloads[Slot(round)] = round;
    Show(WorldEventKind::kResult, rank, step.peer, {round, true});
  }

  void Leave(int rank) {
    ExchangeRecord& record = Record(rank);
    record.left_ns = now_ns_;
    for (int host = 0; host < ranks(); ++host) {
      record.outcomes.push_back(At(rank).exchange.outcome(host));
      Show(WorldEventKind::kReleased, rank, host, {At(rank).exchange.round(), false});
    }
    ScheduleEntry(rank);
  }

  const ExchangeWorld& world_;
  SeededRandom random_;
  int64_t now_ns_ = 0;
  uint64_t events_made_ = 0;
  std::vector<Rank> ranks_;
  std::vector<RankLink> links_;  // by writer and reader
  std::priority_queue<WorldEvent, std::vector<WorldEvent>, std::greater<>> events_;
  ExchangeHistory history_;
};

// Of a batch with rows for another rank.
bool IsTrue(const ExchangeWorld& world, const ExchangeHistory& history, const ExchangeRecord& record, int host,
            uint32_t round, bool served) {
  const auto at = static_cast<size_t>(host);
  const auto left_ns = [&](uint32_t which) {
    return history.ranks[at].size() < which ? kForever : history.ranks[at][which - 1].left_ns;
  };
  switch (record.outcomes[at]) {
    case Outcome::kNone:
    case Outcome::kWaiting:
      return false;
    case Outcome::kDelivered:
      return served;
    case Outcome::kOwnTimeout:
      return true;
    case Outcome::kHostLeft:
      return !served && left_ns(round) <= record.left_ns;
    case Outcome::kRingFull:
      // The host's release may have been under way.
      return !served && round > world.depth && left_ns(round - world.depth) >= record.left_ns - world.max_delay_ns;
    case Outcome::kLostRank:
      return !world.dies_at_ns.empty() && world.dies_at_ns[at] != kForever;
  }
  return false;
}

std::string CheckOutcome(const ExchangeWorld& world, const ExchangeHistory& history, int rank, uint32_t round,
                         int host) {
  const auto at = static_cast<size_t>(host);
  const ExchangeRecord& record = history.ranks[static_cast<size_t>(rank)][round - 1];
  const Outcome outcome = record.outcomes[at];
  const std::vector<ExchangeRecord>& of_host = history.ranks[at];
  const bool served = of_host.size() >= round && of_host[round - 1].served[static_cast<size_t>(rank)];
  const bool right = record.rows[at] == 0 ? outcome == Outcome::kNone && !served
                     : host == rank       ? outcome == Outcome::kDelivered && served
                                          : IsTrue(world, history, record, host, round, served);
  if (right) return "";
  return "rank " + std::to_string(rank) + ", round " + std::to_string(round) + ": outcome " +
         std::to_string(static_cast<int>(outcome)) + " for host " + std::to_string(host) +
         (served ? ", which served it" : ", which did not serve it");
}

}  // namespace

int64_t ExchangeHistory::Rows(Outcome outcome, int rank) const {
  int64_t sum = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (rank >= 0 && static_cast<size_t>(rank) != i) continue;
    for (const ExchangeRecord& record : ranks[i]) {
      for (size_t host = 0; host < record.outcomes.size(); ++host) {
        if (record.outcomes[host] == outcome) sum += record.rows[host];
      }
    }
  }
  return sum;
}

int64_t ExchangeHistory::Sent(int rank) const {
  int64_t sum = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (rank >= 0 && static_cast<size_t>(rank) != i) continue;
    for (const ExchangeRecord& record : ranks[i]) {
      for (const int32_t rows : record.rows) sum += rows;
    }
  }
  return sum;
}

ExchangeHistory Simulate(const ExchangeWorld& world) { return ExchangeSimulator(world).Run(); }

std::string CheckExchanges(const ExchangeWorld& world, const ExchangeHistory& history) {
  if (!history.fault.empty()) return history.fault;
  for (int rank = 0; rank < world.ranks(); ++rank) {
    const auto at = static_cast<size_t>(rank);
    const std::vector<ExchangeRecord>& records = history.ranks[at];
    const bool dies = !world.dies_at_ns.empty() && world.dies_at_ns[at] != kForever;
    for (uint32_t round = 1; round <= records.size(); ++round) {
      if (records[round - 1].left_ns == kForever) {
        if (dies) continue;
        return "rank " + std::to_string(rank) + " does not leave round " + std::to_string(round);
      }
      for (int host = 0; host < world.ranks(); ++host) {
        const std::string fault = CheckOutcome(world, history, rank, round, host);
        if (!fault.empty()) return fault;
      }
    }
    if (!dies && records.size() != world.rounds) return "rank " + std::to_string(rank) + " does not enter all rounds";
  }
  return "";
}

ExchangeWorld RandomExchangeWorld(uint64_t seed) {
  SeededRandom random(seed);
  const auto below = [&random](int64_t bound) {
    return static_cast<int64_t>(random.Below(static_cast<uint64_t>(bound)));
  };
  // Mostly few ranks, where there are more kinds of schedules for the time.
  static constexpr std::array<int64_t, 8> kMost = {4, 4, 6, 6, 8, 12, 24, 64};
  const auto size = static_cast<size_t>(2 + below(kMost[static_cast<size_t>(below(8))] - 1));
  ExchangeWorld world;
  world.seed = seed;
  for (size_t i = 0; i < size; ++i) world.hosts.push_back(below(4) > 0);
  world.hosts[static_cast<size_t>(below(static_cast<int64_t>(size)))] = true;
  world.depth = static_cast<uint32_t>(1 + below(3));
  world.rounds = static_cast<uint32_t>(2 + below(size > 16 ? 2 : 10));
  world.serve_ns = 1 + below(20);
  world.max_delay_ns = below(100);
  world.notice_ns = below(500);
  world.dies_at_ns.assign(size, kForever);
  for (int64_t deaths = below(3); deaths > 0; --deaths) {
    world.dies_at_ns[static_cast<size_t>(below(static_cast<int64_t>(size)))] = below(1000);
  }
  // Fixed for each rank and round, as the simulation may ask at any moment.
  const auto draw = [seed](int rank, uint32_t round, uint64_t what) {
    return SeededRandom(seed * 1'000'003 + static_cast<uint64_t>(rank) * 10'007 + round * 101 + what).Next();
  };
  const bool wait_for_room = below(2) == 0;
  const bool early = below(4) > 0, limited = below(3) == 0;
  const auto slow = static_cast<int>(below(static_cast<int64_t>(size)));
  const int64_t slow_ns = below(2) * below(2000);
  world.pause = [draw, slow, slow_ns](int rank, uint32_t round) {
    return static_cast<int64_t>(draw(rank, round, 1) % 50) + (rank == slow ? slow_ns : 0);
  };
  world.plan = [draw, hosts = world.hosts, wait_for_room, early, limited](int rank, uint32_t round) {
    Plan plan;
    SeededRandom rows(draw(rank, round, 2));
    for (const bool host : hosts) plan.rows.push_back(host ? static_cast<int32_t>(rows.Below(4)) : 0);
    plan.epsilon = static_cast<int>(draw(rank, round, 3) % hosts.size());
    if (early) plan.tau_ns = static_cast<int64_t>(draw(rank, round, 4) % 200);
    if (limited) plan.limit_ns = static_cast<int64_t>(draw(rank, round, 5) % 3000);
    plan.wait_for_room = wait_for_room;
    return plan;
  };
  return world;
}

}  // namespace horocache::testing
