#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "control/bitvector.h"
#include "control/hashing.h"
#include "control/signature.h"
#include "testing/simulation_impl.h"

namespace horocache::testing {

namespace {
constexpr int64_t kSpinNs = 1000;

// Returns test data that differs by request and element: integers small enough that no sum is rounded.
template <typename T>
std::vector<std::byte> NumbersOf(control::OpId op, size_t count) {
  std::vector<T> values;
  for (size_t i = 0; i < count; ++i) values.push_back(static_cast<T>(control::Mix64(op * 97 + i) % 2001) - 1000);
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// Returns a rank's data for an allreduce that may be inline; empty for all other operations.
std::vector<std::byte> DataOf(control::OpId op, const wire::Signature& signature) {
  const int64_t bytes = control::SignatureBytes(signature);
  if (signature.op != wire::Op::kAllreduce || bytes > static_cast<int64_t>(control::kMaxInlineBytes)) return {};
  if (signature.tensors[0].dtype == DType::kInt64) return NumbersOf<int64_t>(op, static_cast<size_t>(bytes) / 8);
  return NumbersOf<float>(op, static_cast<size_t>(bytes) / 4);
}
}  // namespace

void Simulation::Impl::Step(int actor) {
  const bool is_member = actor >= scenario_.ranks;
  Member* member = is_member ? &members_[static_cast<size_t>(actor - scenario_.ranks)] : nullptr;
  const int rank = is_member ? member->rank : actor;
  const Application& application = applications_[static_cast<size_t>(rank)];
  if (!application.alive) {
    schedule_.MakeAsleep(actor);
    return;
  }
  if (application.paused_until_ns > now_ns_) {
    schedule_.MakeAsleep(actor);
    schedule_.WakeAt(application.paused_until_ns, actor);
    return;
  }
  if (is_member) {
    StepMember(*member);
  } else {
    StepApplication(rank);
  }
}

void Simulation::Impl::StepApplication(int rank) {
  Application& application = applications_[static_cast<size_t>(rank)];
  if (application.next >= application.program.size()) {
    application.finished = true;
    schedule_.MakeAsleep(rank);
    return;
  }
  const Instruction& instruction = application.program[application.next];
  switch (instruction.act) {
    case Act::kSubmit:
      Submit(rank, instruction);
      break;
    case Act::kConfigure:
      Configure(MemberOf(instruction.set, rank), instruction.settings);
      break;
    case Act::kWait:
      if (static_cast<size_t>(instruction.index) < application.submitted.size() &&
          !StepWait(rank, application.submitted[static_cast<size_t>(instruction.index)])) {
        return;
      }
      break;
    case Act::kWaitAll:
      for (; application.wait_cursor < application.submitted.size(); ++application.wait_cursor) {
        if (!StepWait(rank, application.submitted[application.wait_cursor])) return;
      }
      break;
    case Act::kCompute:
      schedule_.MakeAsleep(rank);
      schedule_.WakeAt(now_ns_ + instruction.duration_ns, rank);
      break;
    case Act::kLeave:
      Leave(MemberOf(instruction.set, rank));
      break;
    case Act::kAbort:
      for (const int index : members_of_rank_[static_cast<size_t>(rank)]) {
        Member& member = members_[static_cast<size_t>(index)];
        HistoryOf(member).aborted = true;
        member.controller->Abort("rank " + std::to_string(rank) + " raised an error");
        schedule_.MakeRunnable(member.actor);
      }
      break;
  }
  ++application.next;
}

// Returns true once `op` has ended. Until then the application sleeps, and its process set knows that it waits.
bool Simulation::Impl::StepWait(int rank, control::OpId op) {
  Application& application = applications_[static_cast<size_t>(rank)];
  const Submitted& operation = operations_[op];
  Member& member = members_[static_cast<size_t>(operation.member)];
  if (operation.ended) {
    if (std::exchange(application.waits_for, control::kNoOp) != control::kNoOp) {
      schedule_.MakeRunnable(member.actor);
    }
    return true;
  }
  application.waits_for = op;
  schedule_.MakeRunnable(member.actor);
  schedule_.MakeAsleep(rank);
  return false;
}

void Simulation::Impl::Submit(int rank, const Instruction& instruction) {
  Member& member = MemberOf(instruction.set, rank);
  const control::OpId op = operations_.size();
  operations_.push_back(
      Submitted{.rank = rank, .member = member.actor - scenario_.ranks, .name = instruction.signature.name});
  applications_[static_cast<size_t>(rank)].submitted.push_back(op);
  HistoryOf(member).submitted.push_back(SubmitRecord{history_.steps, now_ns_, op,
                                                     std::make_shared<wire::Signature>(instruction.signature),
                                                     DataOf(op, instruction.signature)});
  const std::vector<std::byte>& data = HistoryOf(member).submitted.back().data;
  wire::Request request{.signature = instruction.signature};
  if (Status status = member.controller->Submit(op, request, now_ns_, data); !status.ok()) {
    End(member, op, status, true);
  }
  schedule_.MakeRunnable(member.actor);
}

void Simulation::Impl::Configure(Member& member, const std::string& settings) {
  // A set that has ended refuses them.
  if (member.controller->Configure(settings).ok()) ++HistoryOf(member).configured;
  schedule_.MakeRunnable(member.actor);
}

void Simulation::Impl::Leave(Member& member) {
  if (!member.lost.ok() || member.controller->closed()) return;
  HistoryOf(member).left = true;
  member.controller->Leave();
  schedule_.MakeRunnable(member.actor);
}

void Simulation::Impl::StepMember(Member& member) {
  if (member.stopped) {
    schedule_.MakeAsleep(member.actor);
    return;
  }
  UpdateWaiting(member);
  StatusOr<bool> moved = member.agreement->Step(*member.controller, *member.channel, now_ns_);
  if (!moved.ok()) {
    broken_ = true;
    history_.run = {StatusCode::kInternal, "set " + std::to_string(member.set) + " rank " +
                                               std::to_string(member.rank) + " step " + std::to_string(history_.steps) +
                                               ": the agreement failed: " + moved.status().ToString()};
    return;
  }
  Drain(member);
  MemberHistory& history = HistoryOf(member);
  const RoundRecord now{history_.steps, member.controller->round(), member.controller->cache_hash(),
                        member.controller->cache_size()};
  // A step ends at most one round, so the first record of a round has the state in which its snapshot is taken.
  if (history.rounds.empty() || history.rounds.back().round != now.round) history.rounds.push_back(now);
  if (*moved) return;
  schedule_.MakeAsleep(member.actor);
  if (member.controller->closed()) {
    member.stopped = true;
  } else {
    // An agreement that could not move and asks for a wake-up time in the past spins. Each such turn takes kSpinNs.
    const int64_t wake_ns = member.agreement->NextWakeNs();
    if (wake_ns <= now_ns_) ++history.spins;
    schedule_.WakeAt(std::max(wake_ns, now_ns_ + kSpinNs), member.actor);
  }
}

// Tells the member's controller if the rank's one thread waits for an operation of this set. It waits for good only if
// no planned operation is running, whose end could let the thread go on.
void Simulation::Impl::UpdateWaiting(Member& member) {
  const control::OpId op = applications_[static_cast<size_t>(member.rank)].waits_for;
  const bool here = op != control::kNoOp && operations_[op].member == member.actor - scenario_.ranks;
  const bool waiting = here && !operations_[op].ended;
  member.controller->SetWaiting(waiting, waiting && member.running == 0);
}

// Takes plans, settings, failures and reports from the controller, as the runtime does after every step of the
// agreement.
void Simulation::Impl::Drain(Member& member) {
  MemberHistory& history = HistoryOf(member);
  while (member.controller->NextPlan(&plan_)) {
    history.planned.push_back(PlanRecord{history_.steps, plan_, {}});
    if (plan_.is_inline()) {
      RunInline(member);
    } else if (member.lost.ok()) {
      for (const control::PlanItem& item : plan_.items) {
        if (item.op != control::kNoOp && item.last_piece) ++member.running;
      }
      data_plane_.Enqueue(member.set, member.index, plan_, now_ns_);
    } else {
      for (const control::PlanItem& item : plan_.items) {
        if (item.op != control::kNoOp && item.last_piece) End(member, item.op, member.lost);
      }
    }
  }
  for (control::Settings settings; member.controller->NextSettings(&settings);) {
    history.settings.push_back(
        {history_.steps, member.controller->round(), history.planned.size(), std::move(settings)});
  }
  control::Failure failure;
  while (member.controller->NextFailure(&failure)) End(member, failure.op, failure.status);
  std::string text;
  while (member.controller->NextReport(&text)) history.reports.push_back(text);
}

// Runs an inline allreduce. It has the data of all ranks, so it succeeds even if the set is lost.
void Simulation::Impl::RunInline(Member& member) {
  const control::PlanItem& item = plan_.items[0];
  PlanRecord& record = HistoryOf(member).planned.back();
  const int64_t bytes = control::SignatureBytes(*item.signature);
  record.result.resize(static_cast<size_t>(bytes));
  const auto ranks = static_cast<int>(scenario_.sets[static_cast<size_t>(member.set)].size());
  const Status status =
      fold_.Run(*item.signature, ranks, plan_.divisor_ranks, plan_.contributions, bytes, record.result.data());
  member.controller->SetLastDone(item.signature->name);
  End(member, item.op, status);
}

void Simulation::Impl::End(const Member& member, control::OpId op, const Status& status, bool rejected) {
  HistoryOf(member).ended.push_back(EndRecord{history_.steps, now_ns_, op, rejected, status});
  if (op >= operations_.size()) return;  // CheckEnds reports it
  operations_[op].ended = true;
  const int rank = operations_[op].rank;
  if (applications_[static_cast<size_t>(rank)].waits_for == op) schedule_.MakeRunnable(rank);
}

}  // namespace horocache::testing
