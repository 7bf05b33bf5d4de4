#include "testing/checkers.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "testing/lives.h"

namespace horocache::testing {

namespace {

// Compares the parts of two ranks' plans that must be equal. Returns the first difference; empty if there is none.
std::string Difference(const control::Plan& a, const control::Plan& b) {
  if (a.sequence != b.sequence) {
    return "sequence " + std::to_string(a.sequence) + " and " + std::to_string(b.sequence);
  }
  if (a.op != b.op) return "operation " + std::string(wire::OpName(a.op)) + " and " + std::string(wire::OpName(b.op));
  if (!(a.choice == b.choice)) return "choice";
  if (a.epoch != b.epoch) return "epoch";
  if (a.device_class != b.device_class) return "device class";
  if (std::tie(a.joined, a.last_joined, a.divisor_ranks) != std::tie(b.joined, b.last_joined, b.divisor_ranks)) {
    return "joined ranks or divisor";
  }
  if (a.contributions != b.contributions) return "the inline data of the round";
  if (a.items.size() != b.items.size()) {
    return std::to_string(a.items.size()) + " and " + std::to_string(b.items.size()) + " items";
  }
  for (size_t i = 0; i < a.items.size(); ++i) {
    const control::PlanItem &x = a.items[i], &y = b.items[i];
    if (x.signature != y.signature && !(*x.signature == *y.signature)) {
      return "item " + std::to_string(i) + ": " + Quoted(x.signature->name) + " and " + Quoted(y.signature->name);
    }
    if (x.first_tensor != y.first_tensor || x.num_tensors != y.num_tensors || x.last_piece != y.last_piece) {
      return "pieces of " + Quoted(x.signature->name);
    }
  }
  return "";
}

const MemberHistory& Longest(const SetHistory& set) {
  return *std::max_element(set.members.begin(), set.members.end(), [](const MemberHistory& a, const MemberHistory& b) {
    return a.planned.size() < b.planned.size();
  });
}

// Returns why the plan number `index`, made at `step`, must not count on `member` for the request with `signature`;
// empty if it may.
std::string NoRight(const MemberHistory& member, const Lives& lives, bool joined, const wire::Signature& signature,
                    size_t index, uint64_t step) {
  const auto matches = [&](control::OpId op) {
    const Life& life = lives.by_op.at(op);
    return life.OutstandingAt(step, index) || (life.plan == index && life.submitted < step);
  };
  if (joined) {
    const bool has = std::any_of(lives.joins.begin(), lives.joins.end(), matches);
    return has ? "" : "rank " + std::to_string(member.rank) + " counts as joined but has no join outstanding";
  }
  // A name is free again once its request is planned, so a member may have two requests of one name in flight.
  bool other = false;
  const auto named = lives.by_name.find(signature.name);
  for (size_t i = 0; named != lives.by_name.end() && i < named->second.size(); ++i) {
    // A request that runs in pieces is the same request in the plans after its first one.
    const control::OpId op = named->second[i];
    const Life& life = lives.by_op.at(op);
    const bool later_piece = life.plan < index && life.ended >= step && life.submitted < step;
    if (!matches(op) && !later_piece) continue;
    if (*life.signature == signature) return "";
    other = true;
  }
  return "rank " + std::to_string(member.rank) +
         (other ? " submitted it with another signature" : " had not submitted it");
}

// The progress of one operation in a member's plans.
struct Pieces {
  int next_tensor = 0;
  size_t plan = 0;
  bool complete = false;
};

// Collects the pieces of all operations. Fails if a piece does not continue where the previous one ended.
Status CollectPieces(const History& history, size_t set, const MemberHistory& member,
                     std::unordered_map<control::OpId, Pieces>* pieces) {
  for (size_t i = 0; i < member.planned.size(); ++i) {
    for (const control::PlanItem& item : member.planned[i].plan.items) {
      if (item.op == control::kNoOp) continue;
      const auto [known, first] = pieces->try_emplace(item.op);
      Pieces& state = known->second;
      const auto total = static_cast<int>(item.signature->tensors.size());
      const bool follows = first ? item.first_tensor == 0
                                 : !state.complete && item.first_tensor == state.next_tensor && i - state.plan <= 1;
      const int end = item.first_tensor + item.num_tensors;
      if (!follows || end > total || item.last_piece != (end == total)) {
        return Violation(history, set, member, member.planned[i].step,
                         "piece of " + Quoted(item.signature->name) + " with tensors " +
                             std::to_string(item.first_tensor) + " to " + std::to_string(end) + " of " +
                             std::to_string(total) + " in plan number " + std::to_string(i) +
                             " does not continue at tensor " + std::to_string(state.next_tensor));
      }
      state = Pieces{end, i, item.last_piece};
    }
  }
  return Status::Ok();
}

}  // namespace

Status CheckCaches(const History& history) {
  for (size_t s = 0; s < history.sets.size(); ++s) {
    std::map<uint64_t, std::pair<const MemberHistory*, const RoundRecord*>> first;
    for (const MemberHistory& member : history.sets[s].members) {
      for (const RoundRecord& record : member.rounds) {
        const auto [known, inserted] = first.try_emplace(record.round, &member, &record);
        if (inserted || known->second.second->cache_hash == record.cache_hash) continue;
        return Violation(
            history, s, member, record.step,
            "in round " + std::to_string(record.round) + " its cache has " + std::to_string(record.cache_size) +
                " entries and hash " + std::to_string(record.cache_hash) + ", that of rank " +
                std::to_string(known->second.first->rank) + " " + std::to_string(known->second.second->cache_size) +
                " and " + std::to_string(known->second.second->cache_hash));
      }
    }
  }
  return Status::Ok();
}

Status CheckOrder(const History& history) {
  for (size_t s = 0; s < history.sets.size(); ++s) {
    if (history.sets[s].members.empty()) continue;
    const MemberHistory& longest = Longest(history.sets[s]);
    for (const MemberHistory& member : history.sets[s].members) {
      for (size_t i = 0; i < member.planned.size(); ++i) {
        const std::string difference = Difference(member.planned[i].plan, longest.planned[i].plan);
        if (difference.empty()) continue;
        return Violation(history, s, member, member.planned[i].step,
                         "plan number " + std::to_string(i) + " differs from that of rank " +
                             std::to_string(longest.rank) + " in " + difference);
      }
    }
  }
  return Status::Ok();
}

Status CheckSettings(const History& history) {
  for (size_t s = 0; s < history.sets.size(); ++s) {
    const auto& members = history.sets[s].members;
    if (members.empty()) continue;
    const MemberHistory& longest =
        *std::ranges::max_element(members, {}, [](const MemberHistory& member) { return member.settings.size(); });
    for (const MemberHistory& member : members) {
      for (size_t i = 0; i < member.settings.size(); ++i) {
        const SettingsRecord &a = member.settings[i], &b = longest.settings[i];
        if (a.settings == b.settings && a.round == b.round && a.plans == b.plans) continue;
        return Violation(history, s, member, a.step,
                         "change " + std::to_string(i) + " of its settings came in round " + std::to_string(a.round) +
                             " after " + std::to_string(a.plans) + " plans, on rank " + std::to_string(longest.rank) +
                             " in round " + std::to_string(b.round) + " after " + std::to_string(b.plans) +
                             ", or is another");
      }
    }
  }
  return Status::Ok();
}

Status CheckEnds(const History& history) {
  for (size_t s = 0; s < history.sets.size(); ++s) {
    for (const MemberHistory& member : history.sets[s].members) {
      std::unordered_map<control::OpId, const SubmitRecord*> open;
      for (const SubmitRecord& submit : member.submitted) open[submit.op] = &submit;
      std::unordered_set<control::OpId> ended;
      for (const EndRecord& end : member.ended) {
        const auto found = open.find(end.op);
        if (found == open.end() && ended.count(end.op) == 0) {
          return Violation(history, s, member, end.step,
                           "operation " + std::to_string(end.op) + " was never submitted");
        }
        if (!ended.insert(end.op).second) {
          return Violation(history, s, member, end.step,
                           "operation " + std::to_string(end.op) + " ended twice, now with " + end.status.ToString());
        }
        open.erase(found);
      }
      if (member.killed) continue;
      for (const SubmitRecord& submit : member.submitted) {
        if (open.count(submit.op) == 0) continue;
        return Violation(history, s, member, submit.step, Quoted(submit.signature->name) + " never ended");
      }
    }
  }
  return Status::Ok();
}

Status CheckGroups(const History& history) {
  for (size_t s = 0; s < history.sets.size(); ++s) {
    for (const MemberHistory& member : history.sets[s].members) {
      std::unordered_map<control::OpId, Pieces> pieces;
      HC_RETURN_IF_ERROR(CollectPieces(history, s, member, &pieces));
      for (const auto& [op, state] : pieces) {
        if (state.complete || member.killed) continue;
        return Violation(history, s, member, member.planned[state.plan].step,
                         "operation " + std::to_string(op) + " ran in part only");
      }
      if (member.lost) continue;
      for (const EndRecord& end : member.ended) {
        if (end.status.ok() == (pieces.count(end.op) != 0)) continue;
        return Violation(history, s, member, end.step,
                         "operation " + std::to_string(end.op) +
                             (end.status.ok() ? " completed without a plan" : " failed after it was planned"));
      }
    }
  }
  return Status::Ok();
}

Status CheckValidity(const History& history) {
  for (size_t s = 0; s < history.sets.size(); ++s) {
    const SetHistory& set = history.sets[s];
    if (set.members.empty()) continue;
    const std::vector<Lives> lives = LivesOf(set);
    const MemberHistory& longest = Longest(set);
    for (size_t i = 0; i < longest.planned.size(); ++i) {
      uint64_t step = kNoStep;
      for (const MemberHistory& member : set.members) {
        if (i < member.planned.size()) step = std::min(step, member.planned[i].step);
      }
      const control::Plan& plan = longest.planned[i].plan;
      for (size_t m = 0; m < set.members.size(); ++m) {
        const bool joined = std::count(plan.joined.begin(), plan.joined.end(), static_cast<int32_t>(m)) != 0;
        for (const control::PlanItem& item : plan.items) {
          const std::string why = NoRight(set.members[m], lives[m], joined, *item.signature, i, step);
          if (why.empty()) continue;
          return Violation(
              history, s, longest, step,
              "plan number " + std::to_string(i) + " runs " + Quoted(item.signature->name) + " but " + why);
        }
      }
    }
  }
  return Status::Ok();
}

Status CheckSleep(const History& history) {
  for (size_t s = 0; s < history.sets.size(); ++s) {
    for (const MemberHistory& member : history.sets[s].members) {
      if (member.spins == 0) continue;
      return Violation(history, s, member, history.steps,
                       "its agreement asked " + std::to_string(member.spins) +
                           " times to be woken at a time that had come, although it could not move");
    }
  }
  return Status::Ok();
}

Status CheckAll(const History& history) {
  // Properties that hold for any prefix of a run come first: their violation may be the reason why the run stopped.
  HC_RETURN_IF_ERROR(CheckCaches(history));
  HC_RETURN_IF_ERROR(CheckOrder(history));
  HC_RETURN_IF_ERROR(CheckSettings(history));
  HC_RETURN_IF_ERROR(CheckValidity(history));
  HC_RETURN_IF_ERROR(CheckInline(history));
  if (!history.run.ok()) {
    return {history.run.code(), "seed " + std::to_string(history.seed) + ": " + history.run.message()};
  }
  HC_RETURN_IF_ERROR(CheckEnds(history));
  HC_RETURN_IF_ERROR(CheckGroups(history));
  HC_RETURN_IF_ERROR(CheckSleep(history));
  return CheckFailures(history);
}

}  // namespace horocache::testing
