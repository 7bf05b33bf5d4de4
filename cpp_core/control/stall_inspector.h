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
};

class StallInspector {
 public:
  // Nanoseconds; fail_ns 0: never.
  StallInspector(int64_t warn_ns, int64_t fail_ns, RankNames names = {})
      : warn_ns_(warn_ns), fail_ns_(fail_ns), names_(std::move(names)) {}

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
  };
  Reported WhenReported(const std::string& name, int64_t now_ns) const;
  // Fails what has waited for too long and reports the rest.
  void Report(const std::vector<PendingOp>& ops, const std::vector<WaitingRank>& ranks, const RankSet& joined,
              int64_t now_ns, std::vector<bool>* failed, Verdict* verdict);
  std::string Describe(const PendingOp& op, const std::vector<WaitingRank>& ranks, const RankSet& joined) const;

  const int64_t warn_ns_;
  const int64_t fail_ns_;
  const RankNames names_;
  StringMap<Reported> reported_;
};

// The operations that can never complete: greatest fixpoint over ranks that are stuck (all their threads wait, for
// operations that all lack a stuck rank). Indices into `ops`.
std::vector<size_t> FindDeadlocked(const std::vector<PendingOp>& ops, const std::vector<WaitingRank>& ranks,
                                   const RankSet& joined);

}  // namespace horocache::control
