// Runs what rode on its round, see Note [Operations that ride on a round] in controller.h: all that a lane does for a
// plan, at once, as there is nothing to wait for.
//
// Role: lanes (the holder of the runtime's role). The operations belong to the table.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "control/plan.h"
#include "control/rank_set.h"
#include "control/words.h"
#include "data/backend.h"
#include "data/ride_fold.h"
#include "observe/timeline.h"
#include "runtime/fault.h"
#include "runtime/metrics.h"
#include "runtime/operation_table.h"

namespace horocache::runtime {

// An operation's tensors, one after the other.
using RideData = std::array<std::byte, control::kMaxRideBytes>;
// Copies what is to be reduced, if it is short enough to ride, and returns it; else nothing.
std::span<const std::byte> CopyRideData(const Operation& operation, RideData* data);

class Rides {
 public:
  // `rank` counts within the set; `names` tells how its ranks read in messages. All outlive the rides.
  Rides(const data::KernelSet* kernels, int rank, int size, const control::RankNames* names, OperationTable* table,
        Metrics* metrics, const FaultInjector* faults, observe::Timeline* timeline)
      : fold_(kernels),
        rank_(rank),
        size_(size),
        names_(names),
        table_(table),
        metrics_(metrics),
        faults_(faults),
        timeline_(timeline) {}

  // Folds, and completes the operation.
  void Run(const control::Plan& plan);

  const data::DataCounters& counters() const { return counters_; }
  // Why this rank cannot go on, once; ok if it can.
  Status TakeFault() { return std::exchange(fault_, Status::Ok()); }

 private:
  Status Fold(const control::Plan& plan, Operation* operation);
  // The fault that is due at this place, which ends the job.
  Status Inject(std::string_view place);

  data::RideFold fold_;
  data::DataCounters counters_;
  const int rank_, size_;
  const control::RankNames* const names_;
  OperationTable* const table_;
  Metrics* const metrics_;
  const FaultInjector* const faults_;
  observe::Timeline* const timeline_;
  Status fault_;
};

}  // namespace horocache::runtime
