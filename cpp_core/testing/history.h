// What happened in a simulated job, for the checkers: per process set and member, everything that the controller was
// told and said, stamped with the number of the simulation's step.
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
  std::vector<std::byte> data;  // that may ride on a round; empty if it is too long
};

struct PlanRecord {
  uint64_t step = 0;
  control::Plan plan;
  std::vector<std::byte> result;  // of a plan that rode on its round
};

// The end of one submitted operation: its plan ran, or `status` says why it never will.
struct EndRecord {
  uint64_t step = 0;
  int64_t time_ns = 0;
  control::OpId op = control::kNoOp;
  bool rejected = false;  // by Submit itself
  Status status;
};

// The cache as it was when `round` began: what the member's snapshot of that round is about.
struct RoundRecord {
  uint64_t step = 0;
  uint64_t round = 0;
  uint64_t cache_hash = 0;
  int64_t cache_size = 0;
};

struct MemberHistory {
  int rank = 0;  // of the job
  std::vector<SubmitRecord> submitted;
  std::vector<PlanRecord> planned;
  std::vector<EndRecord> ended;
  std::vector<RoundRecord> rounds;
  std::vector<std::string> reports;
  bool killed = false, lost = false, left = false, aborted = false, closed = false;
  uint64_t spins = 0;  // steps that moved nothing and asked to be repeated at once
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
  // Why the run itself went wrong: a protocol error, waiting in a circle, no rest. Ok if it ended as it should.
  Status run;
  uint64_t messages = 0, bytes = 0, rings = 0;
};

}  // namespace horocache::testing
