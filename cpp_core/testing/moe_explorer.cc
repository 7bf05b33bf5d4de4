#include "testing/moe_explorer.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

#include "testing/moe_state_set.h"
#include "testing/seeded_random.h"

namespace horocache::testing {
namespace {

using moe::Exchange;
using moe::kForever;
using moe::Outcome;
using moe::Plan;
using ExchangeAct = Exchange::Act;

// Moments: before and after every time-out.
constexpr int64_t kBeforeTimeOuts = 0;
constexpr int64_t kAfterTimeOuts = 1;

// An event of one rank. kReleased reports the next number, after the cells that its flags name.
enum class StepKind : uint8_t { kEnter, kBatch, kResult, kReleased, kLost, kTimeOut, kDie };
constexpr int kWithBatch = 1, kWithResult = 2;
struct StepEvent {
  StepKind kind = StepKind::kEnter;
  int from = 0;
  int flags = 0;
  int Code() const { return (static_cast<int>(kind) * kMaxExploredRanks + from) * 4 + flags; }
};
constexpr int kStepCodes = 7 * kMaxExploredRanks * 4;

std::string Name(int rank, const StepEvent& event) {
  static const std::array<const char*, 7> names = {"enters",
                                                   "sees the batch of",
                                                   "sees the result of",
                                                   "sees the release of",
                                                   "learns of the death of",
                                                   "has a time-out",
                                                   "dies"};
  std::string text = std::to_string(rank) + " " + names[static_cast<size_t>(event.kind)];
  const bool has_peer =
      event.kind != StepKind::kEnter && event.kind != StepKind::kTimeOut && event.kind != StepKind::kDie;
  if (has_peer) text += " " + std::to_string(event.from);
  return text;
}

// The result of an event.
struct LocalStep {
  uint16_t next = 0;
  uint8_t sent = 0;    // by rank: a batch for it
  uint8_t served = 0;  // by rank: a result for it
  bool left = false;
  std::string fault;
};

// The machines of one rank that have been met, and their steps.
class LocalSteps {
 public:
  LocalSteps(const ExchangeCase& tested, int rank) : case_(tested), rank_(rank) {
    Intern(Exchange(rank, tested.hosts, tested.depth));
  }

  const Exchange& machine(uint16_t id) const { return entries_[id].machine; }
  bool IsArmed(uint16_t id) const { return entries_[id].armed; }
  const std::array<bool, moe::kNumOutcomes>& seen() const { return seen_; }

  const LocalStep& Step(uint16_t id, const StepEvent& event) {
    int32_t& known = entries_[id].steps[static_cast<size_t>(event.Code())];
    if (known >= 0) return steps_[static_cast<size_t>(known)];
    const auto number = static_cast<int32_t>(steps_.size());
    known = number;
    LocalStep made = Make(machine(id), event);  // may move entries_
    steps_.push_back(std::move(made));
    return steps_.back();
  }

 private:
  struct Entry {
    Exchange machine;
    bool armed = false;
    std::array<int32_t, kStepCodes> steps{};
  };

  const Plan& PlanOf(int rank, uint32_t round) const { return case_.plans[round - 1][static_cast<size_t>(rank)]; }

  void Apply(Exchange* machine, const StepEvent& event) const {
    const int from = event.from;
    const auto batch = [&] {
      machine->OnBatch(from, PlanOf(from, machine->round()).rows[static_cast<size_t>(rank_)] > 0);
    };
    switch (event.kind) {
      case StepKind::kEnter:
        machine->Enter(PlanOf(rank_, machine->round() + 1), kBeforeTimeOuts);
        break;
      case StepKind::kBatch:
        batch();
        break;
      case StepKind::kResult:
        machine->OnResult(from);
        break;
      case StepKind::kReleased:
        if (event.flags & kWithBatch) batch();
        if (event.flags & kWithResult) machine->OnResult(from);
        machine->OnReleased(from, machine->released(from) + 1);
        break;
      case StepKind::kLost:
        machine->OnLost(from);
        break;
      case StepKind::kTimeOut:
      case StepKind::kDie:
        break;
    }
  }

  LocalStep Make(Exchange machine, const StepEvent& event) {
    LocalStep local;
    const bool awaited = machine.inside() && machine.outcome(event.from) == Outcome::kWaiting;
    Apply(&machine, event);
    const bool repeats =
        event.kind == StepKind::kBatch || event.kind == StepKind::kResult || event.kind == StepKind::kLost;
    if (repeats) {
      Exchange again = machine;
      Apply(&again, event);
      if (!(again == machine)) local.fault = "a repetition of the event changes the machine";
    }
    const bool has_result =
        event.kind == StepKind::kResult || (event.kind == StepKind::kReleased && (event.flags & kWithResult) != 0);
    uint8_t may_take = has_result && awaited ? static_cast<uint8_t>(1 << event.from) : 0;
    Run(&machine, event.kind == StepKind::kTimeOut ? kAfterTimeOuts : kBeforeTimeOuts, &may_take, &local);
    if (may_take != 0) local.fault = "a result that came is not taken";
    if (event.kind == StepKind::kTimeOut && !local.left) local.fault = "a time-out does not end the round";
    if (local.left) CheckOutcomes(machine, &local);
    local.next = Intern(std::move(machine));
    return local;
  }

  // All steps that the rank takes by itself.
  void Run(Exchange* machine, int64_t now_ns, uint8_t* may_take, LocalStep* local) {
    for (int count = 0; machine->inside(); ++count) {
      const Exchange before = *machine;
      const Exchange::Step step = machine->Next(now_ns);
      const auto bit = static_cast<uint8_t>(step.peer < 0 ? 0 : 1 << step.peer);
      if (count > 8 * kMaxExploredRanks) local->fault = "the steps do not end";
      if (step.act == ExchangeAct::kWait || !local->fault.empty()) return;
      if (step.act == ExchangeAct::kSend) {
        if ((local->sent & bit) != 0 || before.Sent(step.peer)) local->fault = "a batch is sent twice";
        local->sent |= bit;
      } else if (step.act == ExchangeAct::kServe) {
        if ((local->served & bit) != 0 || before.Served(step.peer)) local->fault = "a batch is served twice";
        local->served |= bit;
        if (step.peer == rank_) *may_take |= bit;
      } else if (step.act == ExchangeAct::kTake) {
        if ((*may_take & bit) == 0) local->fault = "a result is taken that did not come, or twice";
        *may_take &= static_cast<uint8_t>(~bit);
      } else {
        local->left = true;
      }
    }
  }

  void CheckOutcomes(const Exchange& machine, LocalStep* local) {
    const Plan& plan = PlanOf(rank_, machine.round());
    for (int host = 0; host < case_.ranks(); ++host) {
      const Outcome outcome = machine.outcome(host);
      seen_[static_cast<size_t>(outcome)] = true;
      const bool lossless = plan.epsilon >= case_.ranks() - 1 && NeverTimesOut();
      if (!IsTrue(machine, plan, host) || (lossless && outcome != Outcome::kNone && outcome != Outcome::kDelivered)) {
        local->fault = "rank " + std::to_string(rank_) + " leaves round " + std::to_string(machine.round()) +
                       " with outcome " + std::to_string(static_cast<int>(outcome)) + " of host " +
                       std::to_string(host);
      }
    }
  }

  bool NeverTimesOut() const {
    if (case_.deaths > 0) return false;
    for (const std::vector<Plan>& round : case_.plans) {
      for (const Plan& plan : round) {
        const bool never = plan.tau_ns == kForever && plan.limit_ns == kForever && plan.wait_for_room;
        if (!never) return false;
      }
    }
    return true;
  }

  bool IsTrue(const Exchange& machine, const Plan& plan, int host) const {
    const uint32_t round = machine.round();
    const uint32_t released = machine.released(host);
    const Outcome outcome = machine.outcome(host);
    if (plan.rows[static_cast<size_t>(host)] == 0) return outcome == Outcome::kNone;
    if (host == rank_) return outcome == Outcome::kDelivered;
    switch (outcome) {
      case Outcome::kNone:
      case Outcome::kWaiting:
        return false;
      case Outcome::kDelivered:
        return true;
      case Outcome::kOwnTimeout:
        return (plan.tau_ns != kForever || plan.limit_ns != kForever) && released < round;
      case Outcome::kHostLeft:
        return released >= round;
      case Outcome::kRingFull:
        return !plan.wait_for_room && round > case_.depth && released < round - case_.depth;
      case Outcome::kLostRank:
        return machine.lost(host);
    }
    return false;
  }

  // Outside of a round only what Enter keeps counts.
  static bool AreAlike(const Exchange& one, const Exchange& other) {
    if (one.round() != other.round() || one.inside() != other.inside()) return false;
    if (one.inside()) return one == other;
    for (int i = 0; i < one.ranks(); ++i) {
      if (one.released(i) != other.released(i) || one.lost(i) != other.lost(i)) return false;
    }
    return true;
  }

  static uint64_t Hash(const Exchange& machine) {
    uint64_t hash = machine.round() * 2 + machine.inside();
    for (int i = 0; i < machine.ranks(); ++i) {
      hash = hash * 1000003 + machine.released(i) * 2 + machine.lost(i);
      if (!machine.inside()) continue;
      hash = hash * 64 + static_cast<uint64_t>(machine.outcome(i)) * 8 + machine.Awaits(i) * 4 + machine.Sent(i) * 2 +
             machine.Served(i);
    }
    return hash;
  }

  uint16_t Intern(Exchange machine) {
    std::vector<uint16_t>& ids = by_hash_[Hash(machine)];
    for (const uint16_t id : ids) {
      if (AreAlike(entries_[id].machine, machine)) return id;
    }
    if (entries_.size() >= kFirstGone) std::abort();  // far more than 4 ranks can have
    const auto id = static_cast<uint16_t>(entries_.size());
    ids.push_back(id);
    Exchange asked = machine;
    const bool armed = machine.inside() && asked.Next(kBeforeTimeOuts).until_ns != kForever;
    entries_.push_back({std::move(machine), armed, {}});
    entries_.back().steps.fill(-1);
    return id;
  }

 public:
  // From here on, the numbers stand for a rank that does nothing more, by the round that it has released.
  static constexpr uint16_t kFirstGone = 0xff00;

 private:
  const ExchangeCase& case_;
  const int rank_;
  std::vector<Entry> entries_;
  std::vector<LocalStep> steps_;
  std::unordered_map<uint64_t, std::vector<uint16_t>> by_hash_;
  std::array<bool, moe::kNumOutcomes> seen_{};
};

// 16 bits for each rank's machine, and 4 bits for each pair of ranks: for rounds 1 to 3 whether a batch is under way,
// and whether a result of the reader's round is. Of the pair of a rank with itself, the first bit says that it is dead.
struct ExploredState {
  std::array<uint64_t, 2> bits{};

  uint16_t machine(int rank) const { return static_cast<uint16_t>(bits[0] >> (16 * rank)); }
  void set_machine(int rank, uint16_t id) {
    bits[0] = (bits[0] & ~(uint64_t{0xffff} << (16 * rank))) | uint64_t{id} << (16 * rank);
  }
  static uint64_t Pair(int writer, int reader, int bit) {
    return uint64_t{1} << ((writer * kMaxExploredRanks + reader) * 4 + bit);
  }
  static uint64_t Batch(int writer, int reader, uint32_t round) {
    return Pair(writer, reader, static_cast<int>(round) - 1);
  }
  static uint64_t Result(int writer, int reader) { return Pair(writer, reader, 3); }
  static uint64_t Dead(int rank) { return Pair(rank, rank, 0); }
  bool Has(uint64_t mask) const { return (bits[1] & mask) != 0; }
  void Set(uint64_t mask) { bits[1] |= mask; }
  void Clear(uint64_t mask) { bits[1] &= ~mask; }
};

class ExchangeExplorer {
 public:
  ExchangeExplorer(const ExchangeCase& tested, uint64_t max_states) : case_(tested), max_states_(max_states) {
    for (int rank = 0; rank < ranks(); ++rank) locals_.emplace_back(tested, rank);
  }

  Exploration Run() {
    Visit(ExploredState());
    found_.states = visited_.size();
    for (const LocalSteps& locals : locals_) {
      for (size_t i = 0; i < found_.seen.size(); ++i) found_.seen[i] |= locals.seen()[i];
    }
    return found_;
  }

 private:
  int ranks() const { return case_.ranks(); }
  uint32_t rounds() const { return static_cast<uint32_t>(case_.plans.size()); }
  static bool IsGone(uint16_t id) { return id >= LocalSteps::kFirstGone; }
  const Exchange& Machine(const ExploredState& state, int rank) const {
    return locals_[static_cast<size_t>(rank)].machine(state.machine(rank));
  }
  // The rounds that the rank has in fact released.
  uint32_t Released(const ExploredState& state, int rank) const {
    const uint16_t id = state.machine(rank);
    if (IsGone(id)) return id - LocalSteps::kFirstGone;
    return Machine(state, rank).released(rank);
  }

  void Fail(const std::string& what) {
    if (!found_.fault.empty()) return;
    found_.fault = what + "; case: " + case_.Describe() + "; steps:";
    for (const auto& [rank, event] : path_) found_.fault += " " + Name(rank, event) + ",";
    found_.fault.back() = '.';
  }

  void Visit(const ExploredState& state) {
    if (!found_.fault.empty() || !found_.complete) return;
    // The number of the first machine is 0, so the empty key stands for the start.
    const StateSet::Key key = {state.bits[0] + 1, state.bits[1]};
    if (!visited_.Insert(key)) return;
    if (visited_.size() >= max_states_) {
      found_.complete = false;
      return;
    }
    bool goes_on = false;
    bool is_inside = false;
    for (int rank = 0; rank < ranks(); ++rank) {
      if (IsGone(state.machine(rank))) continue;
      is_inside |= Machine(state, rank).inside();
      goes_on |= VisitEventsOf(state, rank);
    }
    if (is_inside && !goes_on) Fail("deadlock");
  }

  // True if an event comes in any case.
  bool VisitEventsOf(const ExploredState& state, int rank) {
    bool goes_on = false;
    if (!Machine(state, rank).inside()) {
      Take(state, rank, {StepKind::kEnter});
      goes_on = true;
    }
    for (int from = 0; from < ranks(); ++from) {
      if (from != rank) goes_on |= VisitEventsFrom(state, rank, from);
    }
    if (locals_[static_cast<size_t>(rank)].IsArmed(state.machine(rank))) {
      Take(state, rank, {StepKind::kTimeOut});
      goes_on = true;
    }
    if (deaths_ < case_.deaths) Die(state, rank);
    return goes_on;
  }

  bool VisitEventsFrom(const ExploredState& state, int rank, int from) {
    const Exchange& machine = Machine(state, rank);
    const bool dead = state.Has(ExploredState::Dead(from));
    const bool unaware = dead && !machine.lost(from);
    const bool batch = machine.inside() && state.Has(ExploredState::Batch(from, rank, machine.round()));
    const bool result = machine.inside() && state.Has(ExploredState::Result(from, rank));
    const uint32_t known = machine.released(from);
    const bool released = Released(state, from) > known;
    const bool of_this_round = known + 1 >= machine.round();
    if (batch) Take(state, rank, {StepKind::kBatch, from});
    if (result) Take(state, rank, {StepKind::kResult, from});
    if (released) {
      const int cells = of_this_round ? batch * kWithBatch + result * kWithResult : 0;
      Take(state, rank, {StepKind::kReleased, from, cells});
    }
    if (unaware) Take(state, rank, {StepKind::kLost, from});
    return unaware || (!dead && (batch || result || released));
  }

  // A rank that does nothing more: of it, only the number of its rounds counts.
  void MakeGone(ExploredState* state, int rank, uint32_t released) const {
    state->set_machine(rank, static_cast<uint16_t>(LocalSteps::kFirstGone + released));
    for (int from = 0; from < ranks(); ++from) {
      if (from == rank) continue;
      for (int bit = 0; bit < 4; ++bit) state->Clear(ExploredState::Pair(from, rank, bit));
    }
  }

  void Die(ExploredState state, int rank) {
    MakeGone(&state, rank, Released(state, rank));
    state.Set(ExploredState::Dead(rank));
    path_.push_back({rank, {StepKind::kDie}});
    ++deaths_;
    Visit(state);
    --deaths_;
    path_.pop_back();
  }

  void Take(ExploredState state, int rank, const StepEvent& event) {
    path_.push_back({rank, event});
    const uint32_t before = Machine(state, rank).round();
    const LocalStep step = locals_[static_cast<size_t>(rank)].Step(state.machine(rank), event);
    if (!step.fault.empty()) Fail(step.fault);
    state.set_machine(rank, step.next);
    if (event.kind == StepKind::kBatch || (event.flags & kWithBatch))
      state.Clear(ExploredState::Batch(event.from, rank, before));
    if (event.kind == StepKind::kResult || (event.flags & kWithResult))
      state.Clear(ExploredState::Result(event.from, rank));
    const uint32_t round = Machine(state, rank).round();
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer == rank) continue;
      if ((step.sent >> peer & 1) != 0) WriteBatch(&state, rank, peer, round);
      if ((step.served >> peer & 1) != 0) WriteResult(&state, rank, peer, round);
    }
    if (step.left) Leave(&state, rank, round);
    Visit(state);
    path_.pop_back();
  }

  void WriteBatch(ExploredState* state, int rank, int host, uint32_t round) {
    if (round > case_.depth && Released(*state, host) < round - case_.depth) {
      Fail("rank " + std::to_string(rank) + " writes its batch of round " + std::to_string(round) +
           " into a cell that rank " + std::to_string(host) + " may still read");
    }
    if (Released(*state, host) < round && !IsGone(state->machine(host)))
      state->Set(ExploredState::Batch(rank, host, round));
  }

  void WriteResult(ExploredState* state, int rank, int owner, uint32_t round) {
    if (IsGone(state->machine(owner))) return;
    const Exchange& machine = Machine(*state, owner);
    const bool waits = machine.inside() && machine.round() == round;
    if (machine.round() < round) Fail("a batch is served that was not sent");
    // The cell's next result has the same writer, which comes to that round later.
    if (!waits && state->Has(ExploredState::Result(rank, owner))) Fail("a result overwrites a later one");
    if (waits) state->Set(ExploredState::Result(rank, owner));
  }

  void Leave(ExploredState* state, int rank, uint32_t round) {
    for (int from = 0; from < ranks(); ++from) {
      if (from != rank) state->Clear(ExploredState::Batch(from, rank, round) | ExploredState::Result(from, rank));
    }
    if (round == rounds()) MakeGone(state, rank, round);
  }

  const ExchangeCase& case_;
  const uint64_t max_states_;
  std::vector<LocalSteps> locals_;
  StateSet visited_;
  int deaths_ = 0;
  std::vector<std::pair<int, StepEvent>> path_;
  Exploration found_;
};

}  // namespace

std::string ExchangeCase::Describe() const {
  std::string text = "hosts ";
  for (const bool host : hosts) text += host ? "1" : "0";
  text += ", depth " + std::to_string(depth) + ", deaths " + std::to_string(deaths);
  for (const std::vector<Plan>& round : plans) {
    text += "; round:";
    for (const Plan& plan : round) {
      text += " (rows ";
      for (const int32_t rows : plan.rows) text += rows > 0 ? "1" : "0";
      text += " epsilon " + std::to_string(plan.epsilon) + (plan.tau_ns == kForever ? "" : " tau") +
              (plan.limit_ns == kForever ? "" : " limit") + (plan.wait_for_room ? "" : " no-wait") + ")";
    }
  }
  return text;
}

Exploration Explore(const ExchangeCase& tested, uint64_t max_states) {
  return ExchangeExplorer(tested, max_states).Run();
}

ExchangeCase RandomExchangeCase(uint64_t seed, int ranks, int rounds) {
  SeededRandom random(seed);
  const auto size = static_cast<size_t>(ranks);
  ExchangeCase drawn;
  drawn.hosts.resize(size);
  const uint64_t hosts = 1 + random.Below((uint64_t{1} << ranks) - 1);
  for (size_t i = 0; i < size; ++i) drawn.hosts[i] = (hosts >> i & 1) != 0;
  drawn.depth = static_cast<uint32_t>(1 + random.Below(2));
  drawn.deaths = static_cast<int>(random.Below(static_cast<uint64_t>(std::min(ranks, 3))));
  const bool wait_for_room = random.Below(2) == 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Plan> plans(size);
    for (Plan& plan : plans) {
      for (size_t i = 0; i < size; ++i) plan.rows.push_back(drawn.hosts[i] && random.Below(3) > 0);
      plan.epsilon = static_cast<int>(random.Below(size));
      plan.tau_ns = random.Below(2) == 0 ? kForever : kAfterTimeOuts;
      plan.limit_ns = random.Below(4) > 0 ? kForever : kAfterTimeOuts;
      plan.wait_for_room = wait_for_room;
    }
    drawn.plans.push_back(std::move(plans));
  }
  return drawn;
}

}  // namespace horocache::testing
