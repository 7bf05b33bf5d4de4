#include "testing/simulation.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/duration.h"
#include "control/bitvector.h"
#include "testing/checkers.h"
#include "testing/simulation_impl.h"

namespace horocache::testing {

namespace {

constexpr uint32_t kEpoch = 1;
constexpr uint64_t kDriftNs = 50'000;

control::ControllerConfig ConfigOf(const Scenario& scenario, int set, int index) {
  const auto& members = scenario.sets[static_cast<size_t>(set)];
  control::ControllerConfig config = scenario.controller;
  config.rank = index;
  config.size = static_cast<int>(members.size());
  config.process_set = static_cast<uint32_t>(set);
  config.epoch = kEpoch;
  const control::BackendTraits backend{.name = "simulated", .ops = ~0u, .device_classes = ~0u, .plain_fold = true};
  const control::BackendTraits other{.name = "other", .ops = ~0u, .device_classes = ~0u};  // only tables choose it
  auto selector = control::Selector::Parse({backend, other}, {config.size}, "");
  if (selector.ok()) config.selector = std::move(*selector);
  if (scenario.sabotage.on_config) {
    scenario.sabotage.on_config(set, members[static_cast<size_t>(index)], &config);
  }
  return config;
}
int CountActors(const Scenario& scenario) {
  size_t actors = static_cast<size_t>(scenario.ranks);
  for (const auto& members : scenario.sets) actors += members.size();
  return static_cast<int>(actors);
}
}  // namespace

Simulation::Impl::Impl(Scenario given)
    : scenario_(std::move(given)),
      schedule_(scenario_.seed, CountActors(scenario_)),
      data_plane_(scenario_),
      members_of_rank_(static_cast<size_t>(scenario_.ranks)),
      applications_(static_cast<size_t>(scenario_.ranks)),
      operations_(1),
      faults_(scenario_.faults),
      fold_(*data::FindKernels("auto")) {
  history_.seed = scenario_.seed;
  for (int set = 0; set < static_cast<int>(scenario_.sets.size()); ++set) {
    const auto& ranks = scenario_.sets[static_cast<size_t>(set)];
    networks_.push_back(std::make_unique<InprocNetwork>(
        InprocConfig{.size = static_cast<int>(ranks.size()),
                     .seed = scenario_.seed + 1000003 * (static_cast<uint64_t>(set) + 1),
                     .max_delay_ns = scenario_.max_delay_ns,
                     .delay_words = scenario_.delay_words}));
    control::AgreementConfig agreement{.strategy = scenario_.strategy, .radix = scenario_.radix};
    if (scenario_.ranks_per_host > 0) {
      for (const int rank : ranks) agreement.host_of.push_back(rank / scenario_.ranks_per_host);
    }
    first_member_.push_back(members_.size());
    history_.sets.emplace_back().members.resize(ranks.size());
    for (int index = 0; index < static_cast<int>(ranks.size()); ++index) {
      Member member{.set = set, .index = index, .rank = ranks[static_cast<size_t>(index)]};
      member.actor = scenario_.ranks + static_cast<int>(members_.size());
      member.controller = std::make_unique<control::Controller>(ConfigOf(scenario_, set, index));
      member.agreement = control::MakeAgreement(agreement);
      member.channel =
          std::make_unique<SabotagedChannel>(&networks_.back()->channel(index), &scenario_.sabotage, set, &ranks);
      HistoryOf(member).rank = member.rank;
      members_of_rank_[static_cast<size_t>(member.rank)].push_back(static_cast<int>(members_.size()));
      schedule_.MakeRunnable(member.actor);
      members_.push_back(std::move(member));
    }
  }
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    auto& program = applications_[static_cast<size_t>(rank)].program;
    if (static_cast<size_t>(rank) < scenario_.programs.size()) program = scenario_.programs[static_cast<size_t>(rank)];
    if (scenario_.leave_at_end) {
      program.push_back(Instruction{.act = Act::kWaitAll});
      for (const int member : members_of_rank_[static_cast<size_t>(rank)]) {
        program.push_back(Instruction{.act = Act::kLeave, .set = members_[static_cast<size_t>(member)].set});
      }
    }
    schedule_.MakeRunnable(rank);
  }
}

Member& Simulation::Impl::MemberOf(int set, int rank) {
  const auto& ranks = scenario_.sets[static_cast<size_t>(set)];
  const auto index = std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin();
  return members_[first_member_[static_cast<size_t>(set)] + static_cast<size_t>(index)];
}

History Simulation::Impl::Run() {
  while (!broken_) {
    if (history_.steps >= scenario_.max_steps) {
      history_.run = {StatusCode::kInternal, "the job does not come to rest within " +
                                                 std::to_string(scenario_.max_steps) + " steps: " + AtRest().message()};
      break;
    }
    ApplyFaults();
    if (!Advance()) {
      history_.run = AtRest();
      break;
    }
    if (scenario_.controller.tick && Finished()) break;
    if (schedule_.NoneRunnable()) continue;
    const int actor = schedule_.PickRunnable();
    ++history_.steps;
    Step(actor);
  }
  for (const Member& member : members_) {
    MemberHistory& history = HistoryOf(member);
    history.closed = member.controller->closed();
    history.counters = member.controller->counters();
  }
  for (const auto& network : networks_) {
    history_.messages += network->messages();
    history_.bytes += network->bytes();
    history_.rings += network->rings();
  }
  history_.virtual_ns = now_ns_;
  return std::move(history_);
}

// Advances the clock, to the next event if no actor can run and at random else, and delivers the events that are due.
// Returns false at rest.
bool Simulation::Impl::Advance() {
  int64_t next_ns = std::min(schedule_.NextNs(), data_plane_.NextNs());
  for (const auto& network : networks_) next_ns = std::min(next_ns, network->NextDeliveryNs());
  for (const auto& loss : losses_) next_ns = std::min(next_ns, loss.first);
  // Rings without delay are not events, and may be all that is left.
  if (schedule_.NoneRunnable() && next_ns == kNever) return TakeRings();
  // The clock is slow in relation to the steps, as if all ranks stepped at once. If no actor can run, the clock jumps.
  if (schedule_.NoneRunnable()) {
    now_ns_ = std::max(now_ns_, next_ns);
  } else if (schedule_.random().Below(2 * members_.size()) == 0) {
    now_ns_ += static_cast<int64_t>(schedule_.random().Below(kDriftNs));
  }
  for (const auto& network : networks_) network->AdvanceTo(now_ns_);
  TakeRings();
  schedule_.WakeDue(now_ns_);
  EndPlans();
  HearOfLosses();
  return true;
}

// Makes the rung members runnable; returns true if there were any.
bool Simulation::Impl::TakeRings() {
  bool rung = false;
  for (size_t set = 0; set < networks_.size(); ++set) {
    for (int rank = -1; networks_[set]->NextRung(&rank);) {
      const Member& member = members_[first_member_[set] + static_cast<size_t>(rank)];
      if (member.stopped) continue;
      schedule_.MakeRunnable(member.actor);
      rung = true;
    }
  }
  return rung;
}

void Simulation::Impl::EndPlans() {
  done_.clear();
  data_plane_.AdvanceTo(now_ns_, &done_);
  for (const DataPlane::Done& done : done_) {
    Member& member = members_[first_member_[static_cast<size_t>(done.set)] + static_cast<size_t>(done.member)];
    for (const control::PlanItem& item : done.plan.items) {
      if (item.op == control::kNoOp || !item.last_piece) continue;
      --member.running;
      member.controller->SetLastDone(item.signature->name);
      End(member, item.op, Status::Ok());
    }
    if (!member.stopped) schedule_.MakeRunnable(member.actor);  // its thread may now wait for good, see UpdateWaiting
  }
}

bool Simulation::Impl::Finished() const {
  for (const Application& application : applications_) {
    if (application.alive && !application.finished) return false;
  }
  for (const Member& member : members_) {
    const bool alive = applications_[static_cast<size_t>(member.rank)].alive;
    if (!alive || !member.lost.ok()) continue;
    if (scenario_.leave_at_end ? !member.controller->closed() : member.controller->HasPending()) return false;
  }
  return data_plane_.idle();
}

// Returns Ok if the job may rest now: no rank waits, nothing is pending, and every set that ranks left has closed.
Status Simulation::Impl::AtRest() const {
  HC_RETURN_IF_ERROR(data_plane_.FindCircle());
  for (int rank = 0; rank < scenario_.ranks; ++rank) {
    const Application& application = applications_[static_cast<size_t>(rank)];
    if (!application.alive || application.finished) continue;
    std::string what = "is at instruction " + std::to_string(application.next);
    if (application.waits_for != control::kNoOp) {
      const Submitted& operation = operations_[application.waits_for];
      what = "waits for \"" + operation.name + "\" of set " +
             std::to_string(members_[static_cast<size_t>(operation.member)].set);
    }
    return {StatusCode::kInternal, "rank " + std::to_string(rank) + " " + what + " and nothing will wake it"};
  }
  for (const Member& member : members_) {
    if (!applications_[static_cast<size_t>(member.rank)].alive || !member.lost.ok()) continue;
    const std::string who = "rank " + std::to_string(member.rank) + " in set " + std::to_string(member.set);
    if (scenario_.leave_at_end && !member.controller->closed()) {
      return {StatusCode::kInternal, who + " has left but the set never closed"};
    }
    if (member.controller->HasPending()) {
      return {StatusCode::kInternal, who + " has something pending and nothing will move it"};
    }
    if (!member.controller->closed() && (member.controller->Raised() & control::kUncached) != 0) {
      return {StatusCode::kInternal, who + " has something to send and no round begins"};
    }
  }
  if (!data_plane_.idle()) return {StatusCode::kInternal, "plans wait for members that will never start them"};
  return Status::Ok();
}

Simulation::Simulation(Scenario scenario) : impl_(std::make_unique<Impl>(std::move(scenario))) {}
Simulation::~Simulation() = default;
History Simulation::Run() { return impl_->Run(); }

Status RunAndCheck(const Scenario& scenario, History* history) {
  HC_RETURN_IF_ERROR(CheckScenario(scenario));
  History result = Simulation(scenario).Run();
  Status status = CheckAll(result);
  if (history != nullptr) *history = std::move(result);
  return status;
}

}  // namespace horocache::testing
