// Inspects, on rank 0, which operations are pending on which ranks: reports those that have waited for too long, finds
// those that can never complete, and fails them. The report travels in ResponseList::report, and every rank logs it in
// SetEngine::HandOut.
//
// Three others report on waits that rank 0 does not see: SetEngine::Overdue on a running operation, ReportOverdue
// (strategies/deadline.h) on ranks that do not answer in a round, and PointToPoint::Check on messages. The first two
// end the process set at the limit, because its ranks are then out of step.
//
// Threads: the thread that holds rank 0's progress lock. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "control/rank_set.h"
#include "control/string_map.h"
#include "wire/message.h"

namespace horocache::control {

// One operation that is pending on some ranks.
struct PendingOp {
  wire::Signature signature;
  RankSet has;           // the ranks that are known to have submitted it
  bool stalled = false;  // true if it is pending on some rank for longer than the limit
  bool moving = false;   // true if this round agrees on it or erases its cache entry
};

// The state of one rank.
struct WaitingRank {
  bool all_waiting = false;  // true if every thread waits and this round has no result for the rank
  std::string last_done;
  bool computes = false;  // true if its threads have run lately
};

class StallInspector {
 public:
  // Times in nanoseconds; fail_ns 0: never. Unless `fail_computing`, the limit restarts whenever a rank that lacks the
  // operation computes: that rank may still submit it, and only the user knows whether it takes too long.
  StallInspector(int64_t warn_ns, int64_t fail_ns, bool fail_computing = false, RankNames names = {})
      : warn_ns_(warn_ns), fail_ns_(fail_ns), fail_computing_(fail_computing), names_(std::move(names)) {}

  struct Findings {
    std::vector<wire::Response> failures;
    std::string report;
    // The late ranks that the report names, ascending; only as many as are asked for stack traces.
    std::vector<int32_t> late_ranks;
  };
  // `look`: also look for stalls, because some rank raised kStalled. Deadlocks are always looked for, and conflicts
  // between groups if `look` is true or a deadlock was found.
  Findings Inspect(const std::vector<PendingOp>& ops, const std::vector<WaitingRank>& ranks, const RankSet& joined,
                   bool look, int64_t now_ns);

  // The time at which the next reported operation fails if it is still pending; kNever if there is none.
  int64_t NextFailNs() const;

 private:
  struct Reported {
    int64_t first_ns, last_ns;  // times of the first and last report; the last is kNever before the first report
    int64_t idle_since_ns;      // since then no rank that lacks it has computed
  };
  Reported WhenReported(const PendingOp& op, const std::vector<WaitingRank>& ranks, const RankSet& joined,
                        int64_t now_ns) const;
  // The reason, for an operation that has waited for longer than the limit and has not failed; empty for all others.
  std::string BeyondTheLimit(const Reported& reported, int64_t now_ns) const;
  // Fails the operations that have waited for too long and reports the rest.
  void Report(const std::vector<PendingOp>& ops, const std::vector<WaitingRank>& ranks, const RankSet& joined,
              int64_t now_ns, std::vector<bool>* failed, Findings* findings);
  int64_t FailNs(const Reported& reported) const;  // when it fails, if there is a limit
  // Text for messages: the operations that the ranks without `op` wait for, and the ranks that lack those.
  std::string WaitsOfMissingRanks(const PendingOp& op, const std::vector<PendingOp>& ops,
                                  const std::vector<WaitingRank>& ranks, const RankSet& joined) const;
  std::string Describe(const PendingOp& op, const std::vector<WaitingRank>& ranks, const RankSet& joined) const;

  const int64_t warn_ns_;
  const int64_t fail_ns_;
  const bool fail_computing_;
  const RankNames names_;
  StringMap<Reported> reported_;
};

// Finds the operations that can never complete; returns their indices in `ops`. It computes the greatest fixpoint of
// stuck ranks: a rank is stuck if all its threads wait, it has operations pending, and each of them lacks a stuck rank.
// An operation that lacks a stuck rank can never complete.
//
// Example: rank 0 has only `a` pending, rank 1 only `b`, and all their threads wait. `a` lacks rank 1 and `b` lacks
// rank 0, so both ranks are stuck and both operations are returned. If rank 1 computes, it is not stuck and may still
// submit `a`, so neither is rank 0.
std::vector<size_t> FindDeadlocked(const std::vector<PendingOp>& ops, const std::vector<WaitingRank>& ranks,
                                   const RankSet& joined);

}  // namespace horocache::control
