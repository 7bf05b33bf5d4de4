// Checks that the history explains each failure.
#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/duration.h"
#include "testing/checkers.h"
#include "testing/lives.h"

namespace horocache::testing {

namespace {

// How long a request that fails with a stall may have been pending on all members, because the report was under way.
constexpr int64_t kStallGraceNs = 20'000'000;

bool SharesAName(const wire::Signature& a, const wire::Signature& b) {
  std::unordered_set<std::string> names{a.name};
  for (const auto& tensor : a.tensors) names.insert(tensor.name);
  if (names.count(b.name) != 0) return true;
  return std::any_of(b.tensors.begin(), b.tensors.end(),
                     [&](const wire::TensorMeta& tensor) { return names.count(tensor.name) != 0; });
}

bool AnyMemberDisagrees(const SetHistory& set, const wire::Signature& signature, uint64_t step) {
  for (const MemberHistory& member : set.members) {
    for (const SubmitRecord& submit : member.submitted) {
      if (submit.step > step) break;
      if (!(*submit.signature == signature) && SharesAName(*submit.signature, signature)) return true;
    }
  }
  return false;
}

// True if every member had a request equal to `mine` pending at the same time, for at least kStallGraceNs.
bool WasPendingOnAllMembers(const SetHistory& set, const std::vector<Lives>& lives, const Life& mine) {
  const auto ended_ns = [](const Life& life) { return life.end == nullptr ? kNever : life.end->time_ns; };
  int64_t from_ns = mine.submitted_ns, to_ns = ended_ns(mine);
  for (size_t m = 0; m < set.members.size(); ++m) {
    const auto named = lives[m].by_name.find(mine.signature->name);
    if (named == lives[m].by_name.end()) return false;
    int64_t best_ns = -1, best_from_ns = 0, best_to_ns = 0;
    for (const control::OpId op : named->second) {
      const Life& life = lives[m].by_op.at(op);
      const int64_t common_ns = std::min(to_ns, ended_ns(life)) - std::max(from_ns, life.submitted_ns);
      if (!(*life.signature == *mine.signature) || life.plan != kNoPlan || common_ns <= best_ns) continue;
      best_ns = common_ns;
      best_from_ns = life.submitted_ns;
      best_to_ns = ended_ns(life);
    }
    if (best_ns < kStallGraceNs) return false;
    from_ns = std::max(from_ns, best_from_ns);
    to_ns = std::min(to_ns, best_to_ns);
  }
  return to_ns - from_ns >= kStallGraceNs;
}

bool SomebodyJoins(const std::vector<Lives>& lives) {
  return std::any_of(lives.begin(), lives.end(), [](const Lives& of) { return !of.joins.empty(); });
}

bool WasInFlight(const Lives& lives, const MemberHistory& member, const wire::Signature& signature,
                 const EndRecord& end) {
  return std::any_of(member.submitted.begin(), member.submitted.end(), [&](const SubmitRecord& other) {
    return other.op != end.op && other.step <= end.step && lives.by_op.at(other.op).ended >= end.step &&
           SharesAName(*other.signature, signature);
  });
}

// True if the history explains the failure `end` of member number `index`.
bool HasReason(const SetHistory& set, const std::vector<Lives>& lives, size_t index, const wire::Signature& signature,
               const EndRecord& end) {
  const auto any = [&](auto flag) {
    return std::any_of(set.members.begin(), set.members.end(), [&](const MemberHistory& m) { return m.*flag; });
  };
  switch (end.status.code()) {
    case StatusCode::kPeerLost:
      return any(&MemberHistory::killed);
    case StatusCode::kAborted:
      return any(&MemberHistory::aborted);
    case StatusCode::kShutDown:
      return any(&MemberHistory::left) || any(&MemberHistory::aborted);
    case StatusCode::kMismatch:
      return AnyMemberDisagrees(set, signature, end.step);
    case StatusCode::kUnsupported:
      return SomebodyJoins(lives);
    case StatusCode::kStall:
      return !WasPendingOnAllMembers(set, lives, lives[index].by_op.at(end.op));
    case StatusCode::kDuplicateName:
      return end.rejected && WasInFlight(lives[index], set.members[index], signature, end);
    case StatusCode::kInvalidArgument:
      return end.rejected;
    default:
      return false;
  }
}

}  // namespace

Status CheckFailures(const History& history) {
  for (size_t s = 0; s < history.sets.size(); ++s) {
    const SetHistory& set = history.sets[s];
    const std::vector<Lives> lives = LivesOf(set);
    for (size_t m = 0; m < set.members.size(); ++m) {
      for (const EndRecord& end : set.members[m].ended) {
        if (end.status.ok()) continue;
        const auto life = lives[m].by_op.find(end.op);
        if (life == lives[m].by_op.end()) continue;  // CheckEnds reports it
        if (HasReason(set, lives, m, *life->second.signature, end)) continue;
        const std::string why = end.status.code() == StatusCode::kStall ? "but all members had submitted it alike"
                                                                        : "which nothing in the history explains";
        return Violation(history, s, set.members[m], end.step,
                         Quoted(life->second.signature->name) + " failed with " + end.status.ToString() + ", " + why);
      }
    }
  }
  return Status::Ok();
}

}  // namespace horocache::testing
