// The control plane's decisions: which operations run next, how they are fused, and which failed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "wire/message.h"

namespace horocache::control {

using OpId = uint64_t;  // the runtime's number of one submitted request (a tensor or a whole group)
inline constexpr OpId kNoOp = 0;

// One request, or a run of consecutive tensors of a group that is larger than the fusion threshold.
struct PlanItem {
  OpId op = kNoOp;                                   // kNoOp if this rank has joined and has no data of its own
  std::shared_ptr<const wire::Signature> signature;  // shared with the response cache
  int first_tensor = 0;
  int num_tensors = 0;
  bool last_piece = true;                             // true if the op is complete when this piece is
  wire::ChosenBy chosen_by = wire::ChosenBy::kOrder;  // may differ between the items of a plan
};

// One fused operation. Equal on all ranks of the process set, except for the `OpId`s and agreed_ns.
struct Plan {
  wire::Op op = wire::Op::kAllreduce;
  wire::Choice choice;
  uint64_t sequence = 0;  // position in the agreed order of the process set
  uint32_t epoch = 0;
  wire::DeviceClass device_class = wire::DeviceClass::kCpu;
  std::vector<PlanItem> items;
  std::vector<int32_t> joined;  // ranks without data of their own
  int divisor_ranks = 0;        // the divisor of an average, see Note [The divisor of averages]
  int32_t last_joined = -1;     // for kJoin: the last rank that joined, as a rank of the job
  int64_t agreed_ns = 0;        // when this rank learned of the agreement; set by the runtime, for its timeline
  // For an inline allreduce, see Note [Inline allreduces] in controller.h: every rank's data, in rank
  // order, the same number of words for each. No exchange is left to do. Empty for all other plans.
  std::vector<uint64_t> contributions;
  bool is_inline() const { return !contributions.empty(); }
};

// An operation that will not run. Every submitted OpId ends in exactly one Plan (its last piece) or exactly one
// Failure.
struct Failure {
  OpId op = kNoOp;
  Status status;
};

}  // namespace horocache::control
