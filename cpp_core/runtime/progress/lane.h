// The ordered queue of one backend and one process set: runs agreed plans one after the other, as small tasks.
//
// Note [Lane tasks]
// A plan becomes a chain of tasks: start a collective (the backend packs directly from the tensors, or through a fusion
// buffer), test it until it is finished (the backend unpacks meanwhile), and complete the operations whose last piece
// the plan held. A task never blocks: the next step of the lane runs it again. Each task depends only on the task
// before it in the same lane; docs/decisions/ explains how a dependency engine can schedule the same tasks.
//
// A collective that a device runs is launched, that is, queued on the device, long before it is done. So the lane
// starts the next plan, or the plan's next tensor, behind it, and goes on testing what is launched; plans end in their
// order.
//
// Threads: the driving thread. Owns its plans; the operation table owns the operations.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
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
  bool idle() const { return plans_.empty() && launched_.empty(); }
  // True if a plan waits behind another one.
  bool has_backlog() const { return plans_.size() > 1; }
  // Fails every queued and running operation of the lane with `why`. `in_use`: the backend may still use the tensors of
  // the running ones, which are then never freed.
  void Fail(const Status& why, bool in_use);

  // For stall reports, of the oldest plan that has not ended: its operation (null: none), the time of its last
  // progress, and the ranks that it waits for.
  const Operation* Running() const;
  int64_t StillSinceNs() const { return OldestRun().still_since_ns; }
  void AddWaitingFor(std::vector<int>* ranks) const {
    if (OldestRun().oldest() != nullptr) OldestRun().oldest()->AddWaitingFor(ranks);
  }
  std::string Details() const {
    return OldestRun().oldest() != nullptr ? OldestRun().oldest()->Details() : std::string();
  }
  // True if its collective waits for its own tensors to be computed, and not for other ranks.
  bool awaits_tensors() const;
  // True if a collective under way makes progress only when it is tested.
  bool must_poll() const {
    return (run_.task != nullptr && run_.task->must_poll()) ||
           (!launched_.empty() && launched_.front().run.oldest()->must_poll());
  }
  // The name of the operation that completed last in this lane; empty: none.
  const std::string& last_done() const { return last_done_; }
  // Returns the error after which this rank cannot continue, and clears it; ok if there is none.
  Status TakeFault() { return std::exchange(fault_, Status::Ok()); }

 private:
  using Task = bool (Lane::*)();  // returns true when done; the lane then runs the next task

  // A plan under way.
  struct Run {
    std::unique_ptr<data::CollectiveTask> task;                 // null between two collectives
    RingQueue<std::unique_ptr<data::CollectiveTask>> launched;  // of earlier tensors; not done yet
    data::CollectiveTask* oldest() const { return launched.empty() ? task.get() : launched.at(0).get(); }
    // Gives up the collectives. Then they no longer use the callers' memory.
    void Drop() {
      while (!launched.empty()) launched.pop_front();
      task.reset();
    }
    Status status;
    int64_t still_since_ns = 0;
    int64_t started_ns = 0;  // 0: not started, or no timeline
    std::array<int64_t, observe::kNumPhases> phase_ns{};
  };
  struct Launched {
    control::Plan plan;
    Run run;
  };
  // Entries of the device's queue with which the next collective is launched. A launch blocks when the queue is full,
  // at about 1,000, and so would the driving thread.
  static constexpr int kMostQueued = 500;

  // Ready when the streams of the program have computed the CUDA tensors of all operations of the plan.
  class Computed : public data::Event {
   public:
    bool Ready() override {
      while (!events.empty() && events.back()->Happened()) events.pop_back();
      return events.empty();
    }
    Status HoldBack(cuda::Stream* stream, bool* waits) override;
    std::vector<const cuda::StreamEvent*> events;

   private:
    std::vector<const cuda::StreamEvent*> last_of_stream_;  // scratch of HoldBack
  };

  bool StartCollective();
  // Sets the device of the plan's CUDA tensors and the event for which the collective waits.
  void AddDevice(const control::Plan& plan, data::Collective* collective);
  bool TestCollective();
  bool CompletePlan();

  const Run& OldestRun() const { return launched_.empty() ? run_ : launched_.front().run; }
  // The plan of OldestRun; null: there is none.
  const control::Plan* OldestPlan() const;
  // Tests a collective of `run`, which runs `plan`. True when it has ended; *task is then null.
  bool TestTask(const control::Plan& plan, std::unique_ptr<data::CollectiveTask>* task, Run* run);
  // The same for one that is launched.
  bool TestLaunchedTask(const control::Plan& plan, std::unique_ptr<data::CollectiveTask>* task, Run* run);
  // Tests the collectives of the plan's earlier tensors; true when all have ended.
  bool TestEarlier(const control::Plan& plan, Run* run);
  bool TestLaunched();
  // Moves the plan at the front, which is launched, out of the way of the next one. `on_device` happens at its end.
  void NoteLaunched(const std::shared_ptr<const cuda::Event>& on_device);
  // Gets ready for the next plan.
  void Advance();
  // Completes the operations whose last piece `plan` has, and keeps its memory for later plans.
  void Complete(control::Plan* plan, const Run& run);

  void NoteStarted();
  // Fills the collective that runs all segments of the plan at once.
  void BuildFused(const control::Plan& plan, data::Collective* collective) const;
  // Fills the collective of one tensor, for operations that do not fuse.
  void BuildSingle(const control::Plan& plan, data::Collective* collective);
  // The memory for the result of BuildSingle's tensor: the caller's, or new memory.
  StatusOr<std::byte*> PlaceFor(int64_t bytes);
  void KeepResult();
  // Adds the name of the operation to the status if the plan has exactly one item.
  static Status Named(const control::Plan& plan, const Status& status);
  // The number of rows in the result that was just received.
  int64_t RowsReceived(const wire::Signature& signature, const RowLists& lists) const;
  bool NextTensor();
  // Triggers the fault that is due at this place. Every fault except kDrop ends the job.
  Status Inject(std::string_view place);
  void FinishItem(const control::Plan& plan, const Run& run, const control::PlanItem& item);
  // Records for the timeline.
  void MarkPhase(const data::CollectiveTask& task, Run* run);
  void Trace(const control::Plan& plan, const Run& run, const control::PlanItem& item, const Operation& operation);

  data::Backend* const backend_;
  const int rank_;
  const control::RankNames* const names_;
  OperationTable* const table_;
  Metrics* const metrics_;
  const FaultInjector* const faults_;
  observe::Timeline* const timeline_;

  RingQueue<control::Plan> plans_;  // not launched yet
  RingQueue<Launched> launched_;
  int queued_ = 0;  // of all launched collectives
  std::vector<control::Plan> spare_;
  Task task_ = &Lane::StartCollective;
  size_t item_ = 0;                                   // current item, for operations that do not fuse
  int tensor_ = 0;                                    // current tensor within the item's piece
  Run run_;                                           // of the plan at the front
  Computed computed_;                                 // of its collective, until that is launched
  std::vector<std::vector<data::Segment>> segments_;  // empty; keep the capacity of earlier collectives' lists
  data::VariableOutput variable_;
  Result result_;
  std::optional<std::span<std::byte>> given_;  // the caller's memory for the result
  bool fills_given_ = false;                   // true if the result must fill it exactly
  Status misfit_;                              // the result does not fit into it
  std::string last_done_;
  Status fault_;
};

}  // namespace horocache::runtime
