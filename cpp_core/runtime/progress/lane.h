// The ordered queue of one backend and one process set: runs agreed plans one after the other, as small tasks.
//
// Note [Lane tasks]
// A plan becomes a chain of tasks: start a collective (the backend packs directly from the tensors, or through a fusion
// buffer), test it until it is finished (the backend unpacks meanwhile), and complete the operations whose last piece
// the plan held. A task never blocks: the next step of the lane runs it again. Each task depends only on the task
// before it in the same lane; docs/decisions/ explains how a dependency engine can schedule the same tasks.
//
// Threads: the driving thread. Owns its plans; the operation table owns the operations.
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
#include "runtime/diagnostics/fault.h"
#include "runtime/diagnostics/metrics.h"
#include "runtime/submission/operation_table.h"

namespace horocache::runtime {

class Lane {
 public:
  // `rank` is the rank within the set; `names` gives the names of the set's ranks in messages. All arguments outlive
  // the lane.
  Lane(data::Backend* backend, int rank, const control::RankNames* names, OperationTable* table, Metrics* metrics,
       const FaultInjector* faults, observe::Timeline* timeline)
      : backend_(backend),
        rank_(rank),
        names_(names),
        table_(table),
        metrics_(metrics),
        faults_(faults),
        timeline_(timeline) {}

  // Takes the plan's contents. Leaves vectors with capacity in *plan for the next plan.
  void Enqueue(control::Plan* plan);
  // Runs tasks for a bounded time; true if anything moved.
  bool Step();
  bool idle() const { return plans_.empty(); }
  // Fails every queued and running operation of the lane with `why`.
  void Fail(const Status& why);

  // For stall reports: the operation that runs now (null: none), the time of its last progress, and the ranks that it
  // waits for.
  const Operation* Running() const;
  int64_t StillSinceNs() const { return still_since_ns_; }
  void AddWaitingFor(std::vector<int>* ranks) const {
    if (running_ != nullptr) running_->AddWaitingFor(ranks);
  }
  std::string Details() const { return running_ != nullptr ? running_->Details() : std::string(); }
  // True if the running collective waits for its own tensors to be computed, and not for other ranks.
  bool awaits_tensors() const {
    return running_ != nullptr && running_->phase() == observe::Phase::kWaitForData && !computed_.events.empty();
  }
  // True if the running collective makes progress only when it is tested.
  bool must_poll() const { return running_ != nullptr && running_->must_poll(); }
  // The name of the operation that completed last in this lane; empty: none.
  const std::string& last_done() const { return last_done_; }
  // Returns the error after which this rank cannot continue, and clears it; ok if there is none.
  Status TakeFault() { return std::exchange(fault_, Status::Ok()); }

 private:
  using Task = bool (Lane::*)();  // returns true when done; the lane then runs the next task

  // Ready when the streams of the program have computed the CUDA tensors of all operations of the plan.
  class Computed : public data::Event {
   public:
    bool Ready() override {
      while (!events.empty() && events.back()->Happened()) events.pop_back();
      return events.empty();
    }
    std::vector<const cuda::StreamEvent*> events;
  };

  bool StartCollective();
  // Sets the device of the plan's CUDA tensors and the event for which the collective waits.
  void AddDevice(const control::Plan& plan, data::Collective* collective);
  bool TestCollective();
  bool CompletePlan();

  void NoteStarted();
  // Fills the collective that runs all segments of the plan at once.
  void BuildFused(const control::Plan& plan, data::Collective* collective) const;
  // Fills the collective of one tensor, for operations that do not fuse.
  void BuildSingle(const control::Plan& plan, data::Collective* collective);
  void KeepResult(const Status& status);
  // Adds the name of the operation to the status if the plan has exactly one item.
  Status Named(const Status& status) const;
  // The number of rows in the result that was just received.
  int64_t RowsReceived(const wire::Signature& signature, const RowLists& lists) const;
  bool NextTensor();
  // Triggers the fault that is due at this place. Every fault except kDrop ends the job.
  Status Inject(std::string_view place);
  void FinishItem(const control::PlanItem& item);
  // Records for the timeline.
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
  size_t item_ = 0;    // current item, for operations that do not fuse
  int tensor_ = 0;     // current tensor within the item's piece
  Status status_;      // of the plan at the front
  Computed computed_;  // of the running collective
  std::unique_ptr<data::CollectiveTask> running_;
  std::vector<data::Segment> segments_;  // empty; keeps the capacity of the last collective's list
  data::VariableOutput variable_;
  Result result_;
  int64_t still_since_ns_ = 0;
  int64_t started_ns_ = 0;  // of the plan at the front; 0: not started, or no timeline
  std::array<int64_t, observe::kNumPhases> phase_ns_{};
  std::string last_done_;
  Status fault_;
};

}  // namespace horocache::runtime
