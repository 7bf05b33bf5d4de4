#include <algorithm>
#include <string>

#include "testing/simulation_impl.h"

namespace horocache::testing {

void Simulation::Impl::ApplyFaults() {
  for (size_t i = 0; i < faults_.size();) {
    if (faults_[i].at_step > history_.steps) {
      ++i;
      continue;
    }
    const Fault fault = faults_[i];
    faults_.erase(faults_.begin() + static_cast<std::ptrdiff_t>(i));
    Application& application = applications_[static_cast<size_t>(fault.rank)];
    if (!application.alive) continue;
    if (fault.kind == Fault::Kind::kPause) {
      application.paused_until_ns = now_ns_ + fault.duration_ns;
    } else {
      Kill(fault);
    }
  }
}

void Simulation::Impl::Kill(const Fault& fault) {
  applications_[static_cast<size_t>(fault.rank)].alive = false;
  for (const int index : members_of_rank_[static_cast<size_t>(fault.rank)]) {
    Member& dead = members_[static_cast<size_t>(index)];
    dead.stopped = true;
    HistoryOf(dead).killed = true;
    networks_[static_cast<size_t>(dead.set)]->Kill(dead.index);
    data_plane_.Drop(dead.set, dead.index);
    for (const int rank : scenario_.sets[static_cast<size_t>(dead.set)]) {
      if (rank == fault.rank) continue;
      const int survivor = MemberOf(dead.set, rank).actor - scenario_.ranks;
      const auto delay = static_cast<int64_t>(
          schedule_.random().Below(static_cast<uint64_t>(std::max<int64_t>(fault.duration_ns, 0)) + 1));
      losses_.push_back({now_ns_ + delay, {survivor, fault.rank}});
    }
  }
}

void Simulation::Impl::HearOfLosses() {
  for (size_t i = 0; i < losses_.size();) {
    if (losses_[i].first > now_ns_) {
      ++i;
      continue;
    }
    const auto [index, dead] = losses_[i].second;
    losses_.erase(losses_.begin() + static_cast<std::ptrdiff_t>(i));
    EndMember(members_[static_cast<size_t>(index)],
              {StatusCode::kPeerLost, "rank " + std::to_string(dead) + " was killed"});
  }
}

void Simulation::Impl::EndMember(Member& member, const Status& why) {
  if (!applications_[static_cast<size_t>(member.rank)].alive || !member.lost.ok()) return;
  // Also for a closed member: it may have plans left, in which the dead rank will never take part.
  HistoryOf(member).lost = true;
  member.lost = why;
  member.stopped = true;
  member.controller->EndWith(why);
  Drain(member);
  for (const control::Plan& plan : data_plane_.Drop(member.set, member.index)) {
    for (const control::PlanItem& item : plan.items) {
      if (item.op != control::kNoOp && item.last_piece) End(member, item.op, why);
    }
  }
}

}  // namespace horocache::testing
