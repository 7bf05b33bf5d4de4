// The ordered queue of one backend and one process set: runs agreed plans one after the other, as small tasks.
//
// Note [Lane tasks]
// A plan becomes a chain of tasks: start a collective (the backend packs from the tensors itself, or through a fusion
// buffer), test it until it is finished (unpacking as it goes), and complete the operations whose last piece it was. A
// task never blocks: it is run again when its lane is stepped. Each task depends on the one before it in its lane and
// on nothing else; docs/decisions/ tells how a dependency engine can schedule the same tasks.
//
// Role: lanes (the holder of the runtime's role). Owns the plans it was given; the operations belong to the table.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ring_queue.h"
#include "base/status.h"
#include "control/plan.h"
#include "control/rank_set.h"
#include "data/backend.h"
#include "observe/timeline.h"
#include "runtime/fault.h"
#include "runtime/metrics.h"
#include "runtime/operation_table.h"

namespace horocache::runtime {

class Lane {
 public:
  // `rank` counts within the set; `names` tells how its ranks read in messages. All outlive the lane.
  Lane(data::Backend* backend, int rank, const control::RankNames* names, OperationTable* table, Metrics* metrics,
       const FaultInjector* faults, observe::Timeline* timeline)
      : backend_(backend),
        rank_(rank),
        names_(names),
        table_(table),
        metrics_(metrics),
        faults_(faults),
        timeline_(timeline) {}

  // Takes the plan's contents; leaves vectors with capacity for the next one.
  void Enqueue(control::Plan* plan);
  // Runs tasks for a bounded time; true if anything moved.
  bool Step();
  bool idle() const { return plans_.empty(); }
  // Everything queued or running here fails with `why`.
  void Fail(const Status& why);

  // For stall reports: the operation that runs now, since when without progress, and the ranks it waits for; null if
  // none runs.
  const Operation* Running() const;
  int64_t StillSinceNs() const { return still_since_ns_; }
  void AddWaitingFor(std::vector<int>* ranks) const {
    if (running_ != nullptr) running_->AddWaitingFor(ranks);
  }
  std::string Details() const { return running_ != nullptr ? running_->Details() : std::string(); }
  // Whether what runs has to be tested now and then.
  bool must_poll() const { return running_ != nullptr && running_->must_poll(); }
  // The name of the operation that completed last here; empty if none has.
  const std::string& last_done() const { return last_done_; }
  // Why this rank cannot go on, once; ok if it can.
  Status TakeFault() { return std::exchange(fault_, Status::Ok()); }

 private:
  using Task = bool (Lane::*)();  // true when done; the next task is then due

  bool StartCollective();
  bool TestCollective();
  bool CompletePlan();

  void NoteStarted();
  // Fills the collective that runs all segments of the plan at once.
  void BuildFused(const control::Plan& plan, data::Collective* collective) const;
  // Fills the collective of one tensor, for operations that do not fuse.
  void BuildSingle(const control::Plan& plan, data::Collective* collective);
  void KeepResult(const Status& status);
  // With the name of the operation, if it is one.
  Status Named(const Status& status) const;
  // Rows of the result that was just received.
  int64_t RowsReceived(const wire::Signature& signature, const RowLists& lists) const;
  bool NextTensor();
  // The fault that is due at this place; all but kDrop end the job.
  Status Inject(std::string_view place);
  void FinishItem(const control::PlanItem& item);
  // For the timeline.
  void MarkPhase();
  void Trace(const control::PlanItem& item, const Operation& operation);

  data::Backend* const backend_;
  const int rank_;
  const control::RankNames* const names_;
  OperationTable* const table_;
  Metrics* const metrics_;
  const FaultInjector* const faults_;
  observe::Timeline* const timeline_;

  RingQueue<control::Plan> plans_;
  std::vector<control::Plan> spare_;
  Task task_ = &Lane::StartCollective;
  size_t item_ = 0;  // cursor of an operation that does not fuse
  int tensor_ = 0;   // within the item's piece
  Status status_;    // of the front plan
  std::unique_ptr<data::Operation> running_;
  std::vector<data::Segment> segments_;  // empty; memory of the last collective's
  data::VariableOutput variable_;
  Result result_;
  int64_t still_since_ns_ = 0;
  int64_t started_ns_ = 0;  // of the front plan; 0: not yet, or there is no timeline
  std::array<int64_t, observe::kNumPhases> phase_ns_{};
  std::string last_done_;
  Status fault_;
};

}  // namespace horocache::runtime
