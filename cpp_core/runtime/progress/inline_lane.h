// Runs inline allreduces, whose data came with their round; see Note [Inline allreduces] in controller.h.
// All ranks' data is present, so the operation completes at once and does not wait in a Lane's queue.
//
// Threads: the driving thread. The operation table owns the operations.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "control/bitvector.h"
#include "control/plan.h"
#include "control/rank_set.h"
#include "data/backend.h"
#include "data/inline_fold.h"
#include "observe/timeline.h"
#include "runtime/diagnostics/fault.h"
#include "runtime/diagnostics/metrics.h"
#include "runtime/submission/operation_table.h"

namespace horocache::runtime {

// The tensors of one operation, concatenated.
using InlineData = std::array<std::byte, control::kMaxInlineBytes>;
// Copies the operation's inputs to *data if it is an allreduce small enough to run inline, and returns the copy.
// Returns an empty span otherwise.
std::span<const std::byte> CopyInlineData(const Operation& operation, InlineData* data);

class InlineLane {
 public:
  // `rank` is the rank within the set; `names` gives the names of the set's ranks in messages. All arguments outlive
  // this object.
  InlineLane(const data::KernelSet* kernels, int rank, int size, const control::RankNames* names, OperationTable* table,
             Metrics* metrics, const FaultInjector* faults, observe::Timeline* timeline)
      : fold_(kernels),
        rank_(rank),
        size_(size),
        names_(names),
        table_(table),
        metrics_(metrics),
        faults_(faults),
        timeline_(timeline) {}

  // Reduces the data of all ranks and completes the operation. `plan.is_inline()` must be true.
  void Run(const control::Plan& plan);

  const data::DataCounters& counters() const { return counters_; }
  // Returns the error after which this rank cannot continue, and clears it; ok if there is none.
  Status TakeFault() { return std::exchange(fault_, Status::Ok()); }

 private:
  Status Fold(const control::Plan& plan, Operation* operation);
  // Triggers the fault that is due at this place. Every fault ends the job.
  Status Inject(std::string_view place);

  data::InlineFold fold_;
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
