// The properties that every run of the control plane must have, with any schedule, programs and faults. A checker
// returns kInternal with seed, process set, rank and step of the first violation.
#pragma once

#include "base/status.h"
#include "testing/history.h"

namespace horocache::testing {

// Caches are identical on all ranks at equal rounds.
Status CheckCaches(const History& history);
// The plans of each member are a prefix of the longest member's: same order, same items, same choices.
Status CheckOrder(const History& history);
// The settings that each member changes are a prefix of the longest list, in the same rounds, after the same plans.
Status CheckSettings(const History& history);
// Every submitted operation ends exactly once, except that those of killed ranks may never end.
Status CheckEnds(const History& history);
// The pieces of a request are consecutive and cover it; no piece of a failed request has run.
Status CheckGroups(const History& history);
// Every planned request was submitted before, with an equal signature, by all members that had not joined.
Status CheckValidity(const History& history);
// An inline allreduce has the data that each member submitted, and every member gets its reduction.
Status CheckInline(const History& history);
// The history explains every failure; a request that all members submitted alike does not fail.
Status CheckFailures(const History& history);
// No rank busy-waits: no step that moved nothing asked for an immediate wake-up.
Status CheckSleep(const History& history);

// Runs all checkers, and checks `history.run`.
Status CheckAll(const History& history);

}  // namespace horocache::testing
