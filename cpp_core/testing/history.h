// The history of a simulated job, for the checkers: for each process set and member, all inputs and outputs of the
// controller, with the number of the simulation's step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/controller.h"
#include "control/plan.h"
#include "wire/message.h"

namespace horocache::testing {

struct SubmitRecord {
  uint64_t step = 0;
  int64_t time_ns = 0;
  control::OpId op = control::kNoOp;
  std::shared_ptr<const wire::Signature> signature;
  std::vector<std::byte> data;  // inline data; empty if it is too long to be inline
};

struct PlanRecord {
  uint64_t step = 0;
  control::Plan plan;
  std::vector<std::byte> result;  // of an inline allreduce
};

// The end of one submitted operation: its plan has run, or `status` has the reason why it will not.
struct EndRecord {
  uint64_t step = 0;
  int64_t time_ns = 0;
  control::OpId op = control::kNoOp;
  bool rejected = false;  // true if Submit itself failed
  Status status;
};

// The cache at the beginning of `round`, to which the member's snapshot of that round refers.
struct RoundRecord {
  uint64_t step = 0;
  uint64_t round = 0;
  uint64_t cache_hash = 0;
  int64_t cache_size = 0;
};

// A change of settings, on one member.
struct SettingsRecord {
  uint64_t step = 0;
  uint64_t round = 0;  // the round after the one that carried them
  size_t plans = 0;    // number of plans that the member had made before
  control::Settings settings;
};

struct MemberHistory {
  int rank = 0;  // of the job
  std::vector<SubmitRecord> submitted;
  std::vector<PlanRecord> planned;
  std::vector<EndRecord> ended;
  std::vector<RoundRecord> rounds;
  std::vector<SettingsRecord> settings;
  uint64_t configured = 0;  // calls of Controller::Configure that succeeded
  std::vector<std::string> reports;
  bool killed = false, lost = false, left = false, aborted = false, closed = false;
  uint64_t spins = 0;  // steps that moved nothing and asked for an immediate wake-up
  control::ControllerCounters counters;
};

struct SetHistory {
  std::vector<MemberHistory> members;
};

struct History {
  uint64_t seed = 0;
  uint64_t steps = 0;
  int64_t virtual_ns = 0;
  std::vector<SetHistory> sets;
  // The error of the run itself: a protocol error, ranks that wait in a circle, no termination. Ok if there is none.
  Status run;
  uint64_t messages = 0, bytes = 0, rings = 0;
};

}  // namespace horocache::testing
