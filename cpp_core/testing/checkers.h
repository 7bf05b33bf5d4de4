// The properties that every run of the control plane has, whatever the schedule, the programs and the faults. Each
// checker names seed, process set, rank and step of the first violation (kInternal).
#pragma once

#include "base/status.h"
#include "testing/history.h"

namespace horocache::testing {

// Caches are identical on all ranks at equal rounds.
Status CheckCaches(const History& history);
// The plans of each member are a prefix of the longest member's: same order, same items, same choices.
Status CheckOrder(const History& history);
// Every submitted operation ends exactly once; only those of killed ranks may not end.
Status CheckEnds(const History& history);
// The pieces of one request follow each other without a gap and cover it; nothing of a failed request ran.
Status CheckGroups(const History& history);
// Nothing was planned that some member, not joined, had not submitted by then with an equal signature.
Status CheckValidity(const History& history);
// What rode on a round is what each member had submitted, and every member got the reduction of that.
Status CheckRides(const History& history);
// Every failure has its reason in the history; what all members submitted alike does not fail.
Status CheckFailures(const History& history);
// Nobody was busy with waiting: no step that moved nothing asked to be repeated at once.
Status CheckSleep(const History& history);

// All of them, and `history.run`.
Status CheckAll(const History& history);

}  // namespace horocache::testing
