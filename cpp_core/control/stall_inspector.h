// Looks, on rank 0, at what is pending where: reports what has waited for too long, finds what can never complete, and
// fails it.
//
// Role: coordinator (rank 0). Pure.
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
  bool stalled = false;  // on some rank, for longer than the limit
  bool moving = false;   // something happens to it in this round
};

struct WaitingRank {
  bool all_waiting = false;  // every thread waits, and nothing of this round concerns it
  std::string last_done;
  bool computes = false;  // its threads have run lately
};

class StallInspector {
 public:
  // Nanoseconds; fail_ns 0: never. Unless `fail_computing`, the limit counts anew from every look at which a rank that
  // lacks the operation computes: it may submit it yet, and only the user knows whether it takes too long.
  StallInspector(int64_t warn_ns, int64_t fail_ns, bool fail_computing = false, RankNames names = {})
      : warn_ns_(warn_ns), fail_ns_(fail_ns), fail_computing_(fail_computing), names_(std::move(names)) {}

  struct Verdict {
    std::vector<wire::Response> failures;
    std::string report;
    std::vector<int32_t> laggards;  // that the report names, ascending; not more than are worth asking where they are
  };
  // `look` for stalls: some rank raised the flag. Deadlocks are looked for in any case; conflicts between groups with
  // either.
  Verdict Inspect(const std::vector<PendingOp>& ops, const std::vector<WaitingRank>& ranks, const RankSet& joined,
                  bool look, int64_t now_ns);

  // When an operation that was reported is to fail, if it is still pending; kNever if none is.
  int64_t NextFailNs() const;

 private:
  struct Reported {
    int64_t first_ns, last_ns;  // the last is kNever before the first
    int64_t idle_since_ns;      // no rank that lacks it has computed since
  };
  Reported WhenReported(const PendingOp& op, const std::vector<WaitingRank>& ranks, const RankSet& joined,
                        int64_t now_ns) const;
  // Why an operation that has waited for longer than the limit is still waited for; empty for all others.
  std::string BeyondTheLimit(const Reported& reported, int64_t now_ns) const;
  // Fails what has waited for too long and reports the rest.
  void Report(const std::vector<PendingOp>& ops, const std::vector<WaitingRank>& ranks, const RankSet& joined,
              int64_t now_ns, std::vector<bool>* failed, Verdict* verdict);
  int64_t FailNs(const Reported& reported) const;  // when it is to fail, if there is a limit
  // For what the ranks that lack the operation wait, and who lacks that.
  std::string WhatTheyWaitFor(const PendingOp& op, const std::vector<PendingOp>& ops,
                              const std::vector<WaitingRank>& ranks, const RankSet& joined) const;
  std::string Describe(const PendingOp& op, const std::vector<WaitingRank>& ranks, const RankSet& joined) const;

  const int64_t warn_ns_;
  const int64_t fail_ns_;
  const bool fail_computing_;
  const RankNames names_;
  StringMap<Reported> reported_;
};

// The operations that can never complete: greatest fixpoint over ranks that are stuck (all their threads wait, for
// operations that all lack a stuck rank). Indices into `ops`.
std::vector<size_t> FindDeadlocked(const std::vector<PendingOp>& ops, const std::vector<WaitingRank>& ranks,
                                   const RankSet& joined);

}  // namespace horocache::control
