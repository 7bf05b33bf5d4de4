#include "control/stall_inspector.h"

#include <algorithm>

#include "base/duration.h"
#include "base/text.h"
#include "control/coordinator.h"
#include "control/signature.h"

namespace horocache::control {
namespace {

constexpr size_t kMostAsked = 4;  // late ranks that are asked for stack traces; one stack often explains the others

std::vector<int32_t> Lacking(const PendingOp& op, const RankSet& joined) {
  std::vector<int32_t> ranks;
  for (int rank = 0; rank < op.has.size(); ++rank) {
    if (!op.has.Has(rank) && !joined.Has(rank)) ranks.push_back(rank);
  }
  return ranks;
}

// Finds pending operations with a tensor in common: each waits for ranks that submit the tensor in the other. Returns,
// by index, the error text of each operation that has such a counterpart; empty for the others.
std::vector<std::string> FindConflicts(const std::vector<PendingOp>& ops, const RankNames& names) {
  std::vector<std::string> texts(ops.size());
  StringMap<size_t> first_with;  // key -> operation
  const auto text = [&](const std::string& key, size_t one, size_t other) {
    return "tensor '" + Printable(key) + "' is pending as a part of " + Describe(ops[one].signature) + " on " +
           names.Text(ops[one].has.ToVector()) + " and as a part of " + Describe(ops[other].signature) + " on " +
           names.Text(ops[other].has.ToVector()) + ". Form the same groups on all ranks.";
  };
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].moving) continue;
    ForEachKey(ops[i].signature, [&](const std::string& key) {
      const size_t first = first_with.try_emplace(key, i).first->second;
      if (ops[first].signature.name == ops[i].signature.name) return;
      texts[i] = text(key, i, first);
      if (texts[first].empty()) texts[first] = text(key, first, i);
    });
  }
  return texts;
}

// True if a report is due. Each rank that has the operation asks for reports, at about the same time and repeatedly, so
// the interval doubles: with a limit of 10 s, reports come after 10, 20, 40 and 80 s of waiting.
bool IsDue(int64_t first_ns, int64_t last_ns, int64_t warn_ns, int64_t now_ns) {
  return last_ns == kNever || now_ns - last_ns >= last_ns - first_ns + warn_ns / 2;
}

// True if a stuck rank has not submitted the operation, which can then never complete.
bool IsDead(const PendingOp& op, const RankSet& stuck) {
  if (op.moving) return false;
  for (int rank = 0; rank < stuck.size(); ++rank) {
    if (stuck.Has(rank) && !op.has.Has(rank)) return true;
  }
  return false;
}

// True if the rank is still stuck. A rank that has nothing pending waits for an operation that the control plane has
// already handed out, and will go on.
bool StaysStuck(int rank, const std::vector<PendingOp>& ops, const RankSet& stuck) {
  bool has_any = false;
  for (const PendingOp& op : ops) {
    if (!op.has.Has(rank)) continue;
    if (!IsDead(op, stuck)) return false;
    has_any = true;
  }
  return has_any;
}

}  // namespace

std::vector<size_t> FindDeadlocked(const std::vector<PendingOp>& ops, const std::vector<WaitingRank>& ranks,
                                   const RankSet& joined) {
  RankSet stuck(static_cast<int>(ranks.size()));
  for (int rank = 0; rank < stuck.size(); ++rank) {
    if (ranks[static_cast<size_t>(rank)].all_waiting && !joined.Has(rank)) stuck.Add(rank);
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (const int32_t rank : stuck.ToVector()) {
      if (StaysStuck(rank, ops, stuck)) continue;
      stuck.Remove(rank);
      changed = true;
    }
  }
  std::vector<size_t> found;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (IsDead(ops[i], stuck)) found.push_back(i);
  }
  return found;
}

StallInspector::Findings StallInspector::Inspect(const std::vector<PendingOp>& ops,
                                                 const std::vector<WaitingRank>& ranks, const RankSet& joined,
                                                 bool look, int64_t now_ns) {
  Findings findings;
  const std::vector<size_t> dead = FindDeadlocked(ops, ranks, joined);
  if (dead.empty() && !look) return findings;
  const std::vector<std::string> conflicts = FindConflicts(ops, names_);
  std::vector<bool> failed(ops.size());
  const auto fail = [&](size_t i, StatusCode code, const std::string& message) {
    failed[i] = true;
    findings.failures.push_back(MakeFailure(ops[i].signature, code, message));
  };
  for (const size_t i : dead) {
    if (!conflicts[i].empty()) continue;
    fail(i, StatusCode::kStall,
         Describe(ops[i], ranks, joined) +
             " It can never complete: " + WaitsOfMissingRanks(ops[i], ops, ranks, joined) +
             " Submit the same operations on all ranks, and wait for none before all that it needs is submitted.");
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!conflicts[i].empty()) fail(i, StatusCode::kMismatch, conflicts[i]);
  }
  if (look) Report(ops, ranks, joined, now_ns, &failed, &findings);
  return findings;
}

void StallInspector::Report(const std::vector<PendingOp>& ops, const std::vector<WaitingRank>& ranks,
                            const RankSet& joined, int64_t now_ns, std::vector<bool>* failed, Findings* findings) {
  constexpr size_t kMostReported = 32;
  StringMap<Reported> still;
  size_t due = 0;
  int64_t longest_ns = 0;  // of the waits that are due for a report, as a multiple of warn_ns_
  RankSet late_ranks(static_cast<int>(ranks.size()));
  for (size_t i = 0; i < ops.size(); ++i) {
    if ((*failed)[i] || ops[i].moving || !ops[i].stalled) continue;
    Reported reported = WhenReported(ops[i], ranks, joined, now_ns);
    if (fail_ns_ > 0 && now_ns >= FailNs(reported)) {
      (*failed)[i] = true;
      findings->failures.push_back(MakeFailure(ops[i].signature, StatusCode::kStall,
                                               Describe(ops[i], ranks, joined) + " Gave up after " +
                                                   SecondsText(std::max(fail_ns_, warn_ns_)) +
                                                   " (HOROCACHE_STALL_SHUTDOWN_TIME_SECONDS)."));
      continue;
    }
    const bool is_due = IsDue(reported.first_ns, reported.last_ns, warn_ns_, now_ns);
    if (is_due) {
      reported.last_ns = now_ns;
      longest_ns = std::max(longest_ns, ((now_ns - reported.first_ns) / warn_ns_ + 1) * warn_ns_);
    }
    still.emplace(ops[i].signature.name, reported);
    if (!is_due || ++due > kMostReported) continue;
    findings->report += "\n  " + Describe(ops[i], ranks, joined);
    findings->report += BeyondTheLimit(reported, now_ns);
    for (const int32_t rank : Lacking(ops[i], joined)) late_ranks.Add(rank);
  }
  reported_ = std::move(still);
  if (due == 0) return;
  findings->late_ranks = late_ranks.ToVector();
  if (findings->late_ranks.size() > kMostAsked) findings->late_ranks.resize(kMostAsked);
  findings->report = "operations wait for more than " + SecondsText(longest_ns) +
                     " for ranks that have not submitted them:" + findings->report;
  if (due > kMostReported) {
    findings->report += "\n  and " + std::to_string(due - kMostReported) + " more.";
  }
}

StallInspector::Reported StallInspector::WhenReported(const PendingOp& op, const std::vector<WaitingRank>& ranks,
                                                      const RankSet& joined, int64_t now_ns) const {
  const auto known = reported_.find(op.signature.name);
  Reported reported = known == reported_.end() ? Reported{now_ns, kNever, now_ns} : known->second;
  const auto computes = [&](int32_t rank) { return ranks[static_cast<size_t>(rank)].computes; };
  if (!fail_computing_ && std::ranges::any_of(Lacking(op, joined), computes)) reported.idle_since_ns = now_ns;
  return reported;
}

std::string StallInspector::BeyondTheLimit(const Reported& reported, int64_t now_ns) const {
  if (fail_ns_ == 0 || now_ns - reported.first_ns < fail_ns_ - warn_ns_) return "";
  return " It computes, or did so lately, so this job waits for it beyond the default limit of " +
         SecondsText(fail_ns_) +
         ". If the operation will never come, end the job; HOROCACHE_STALL_SHUTDOWN_TIME_SECONDS sets a limit that "
         "always counts.";
}

int64_t StallInspector::FailNs(const Reported& reported) const {
  // At the first report, the operation had already waited for warn_ns_.
  const int64_t waits_since_ns = reported.first_ns - warn_ns_;
  const bool computed = reported.idle_since_ns > reported.first_ns;
  return (computed ? reported.idle_since_ns : waits_since_ns) + std::max(fail_ns_, warn_ns_);
}

std::string StallInspector::WaitsOfMissingRanks(const PendingOp& op, const std::vector<PendingOp>& ops,
                                                const std::vector<WaitingRank>& ranks, const RankSet& joined) const {
  constexpr size_t kMaxListed = 4;
  std::vector<std::string> waits;
  for (const int32_t rank : Lacking(op, joined)) {
    if (!ranks[static_cast<size_t>(rank)].all_waiting || waits.size() == kMaxListed) continue;
    const auto lacked = [&](const PendingOp& other) {
      return other.has.Has(rank) && !Lacking(other, joined).empty() && !other.moving;
    };
    const auto found = std::ranges::find_if(ops, lacked);
    if (found == ops.end()) continue;
    waits.push_back(names_.Text(rank) + " waits, itself, for " + control::Describe(found->signature) + ", which " +
                    names_.Text(Lacking(*found, joined)) + " did not submit");
  }
  return Join(waits, "; ") + ".";
}

int64_t StallInspector::NextFailNs() const {
  int64_t next_ns = kNever;
  if (fail_ns_ == 0) return next_ns;
  for (const auto& [name, reported] : reported_) {
    next_ns = std::min(next_ns, FailNs(reported));
  }
  return next_ns;
}

std::string StallInspector::Describe(const PendingOp& op, const std::vector<WaitingRank>& ranks,
                                     const RankSet& joined) const {
  constexpr size_t kMostDescribed = 8;
  const std::vector<int32_t> lacking = Lacking(op, joined);
  std::string text = control::Describe(op.signature) + names_.OfSet() + " was submitted by " +
                     names_.Text(op.has.ToVector()) + " and not by " + names_.Text(lacking);
  for (size_t i = 0; i < lacking.size() && i < kMostDescribed; ++i) {
    const WaitingRank& rank = ranks[static_cast<size_t>(lacking[i])];
    text += i == 0 ? " (" : "; ";
    text += names_.Text(lacking[i]) +
            (rank.last_done.empty() ? " has completed nothing yet"
                                    : " last completed '" + Printable(rank.last_done) + "'") +
            (rank.all_waiting ? " and waits"
             : rank.computes  ? " and computes"
                              : "");
    if (i + 1 == std::min(lacking.size(), kMostDescribed)) text += ")";
  }
  return text + ".";
}

}  // namespace horocache::control
