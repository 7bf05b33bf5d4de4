#include "testing/lives.h"

#include <algorithm>

namespace horocache::testing {

Status Violation(const History& history, size_t set, const MemberHistory& member, uint64_t step,
                 const std::string& what) {
  return {StatusCode::kInternal, "seed " + std::to_string(history.seed) + " set " + std::to_string(set) + " rank " +
                                     std::to_string(member.rank) + " step " + std::to_string(step) + ": " + what};
}

std::string Quoted(const std::string& name) { return "\"" + name + "\""; }

Lives LivesOf(const MemberHistory& member) {
  Lives lives;
  for (const SubmitRecord& submit : member.submitted) {
    Life& life = lives.by_op[submit.op];
    life.signature = submit.signature.get();
    life.record = &submit;
    life.submitted = submit.step;
    life.submitted_ns = submit.time_ns;
    lives.by_name[submit.signature->name].push_back(submit.op);
    if (submit.signature->op == wire::Op::kJoin) lives.joins.push_back(submit.op);
  }
  for (size_t index = 0; index < member.planned.size(); ++index) {
    for (const control::PlanItem& item : member.planned[index].plan.items) {
      const auto found = lives.by_op.find(item.op);
      if (found != lives.by_op.end()) found->second.plan = std::min(found->second.plan, index);
    }
  }
  for (const EndRecord& end : member.ended) {
    const auto found = lives.by_op.find(end.op);
    if (found == lives.by_op.end()) continue;
    // A member that lost the set may have agreed to a plan before, which other members run later.
    const bool by_loss = member.lost && end.status.code() == StatusCode::kPeerLost;
    if (!by_loss) found->second.ended = std::min(found->second.ended, end.step);
    found->second.end = &end;
  }
  return lives;
}

std::vector<Lives> LivesOf(const SetHistory& set) {
  std::vector<Lives> lives;
  lives.reserve(set.members.size());
  for (const MemberHistory& member : set.members) lives.push_back(LivesOf(member));
  return lives;
}

}  // namespace horocache::testing
