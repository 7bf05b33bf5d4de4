// One process set on one rank: its controller, agreement, channel, backends and lanes.
//
// Note [Per-set and per-rank state]
// The progress lock, the doorbell, submissions and waiting threads belong to the rank: ProgressEngine has them once,
// and steps every set of the rank. The negotiation and the execution of operations belong to a set. Sets share the
// doorbell, the operation table and the metrics, and nothing else. So a set that fails leaves the other sets alone.
// Sets may overlap in any way and need no order between them: each moves whenever it can, and the engine never waits
// for one. Inside a set, ranks have their own numbers; messages and metrics name ranks of the job.
//
// Threads: the driving thread, see Note [The progress lock] in progress_engine.h. Owns the set's parts; the operation
// table owns the operations.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "control/agreement.h"
#include "control/controller.h"
#include "control/rank_set.h"
#include "data/backend.h"
#include "net/runtime_channel.h"
#include "runtime/diagnostics/fault.h"
#include "runtime/diagnostics/metrics.h"
#include "runtime/progress/held_back.h"
#include "runtime/progress/inline_lane.h"
#include "runtime/progress/lane.h"
#include "runtime/progress/small_lanes.h"
#include "runtime/submission/operation_table.h"

namespace horocache::data {
class UserCalls;
}  // namespace horocache::data

namespace horocache::runtime {

// The calls to the backends that the program implements, by the backend's name.
using NamedUserCalls = std::map<std::string, std::shared_ptr<data::UserCalls>>;

struct SetConfig {
  uint32_t process_set = 0;
  std::vector<int> ranks;  // ranks of the job, by rank within the set
  int rank = 0;            // of this process within the set
  bool stall_check = true;
  int64_t stall_warn_ns = 0;
  int64_t stall_fail_ns = 0;
  int64_t small_lane_bytes = 0;  // of the largest operation that runs in a small lane
};

// The parts of a set on a member rank.
struct SetParts {
  SetConfig config;
  std::unique_ptr<control::Controller> controller;
  std::unique_ptr<control::Agreement> agreement;
  std::unique_ptr<net::RuntimeChannel> channel;
  std::vector<std::unique_ptr<data::Backend>> backends;
  // Further objects of the same backends, for the small lanes; see Note [Small lanes] in small_lanes.h.
  std::vector<std::unique_ptr<data::Backend>> small_backends;
  const data::KernelSet* kernels = nullptr;  // for inline allreduces, which use no backend
  NamedUserCalls user_calls;
};

// The objects that all sets of a rank share. They outlive the sets.
struct SetContext {
  OperationTable* table = nullptr;
  Metrics* metrics = nullptr;
  const FaultInjector* faults = nullptr;
  const Logger* logger = nullptr;
  observe::Timeline* timeline = nullptr;
  // Called by the driving thread when other ranks ask for this rank's stacks; answered by SendNote.
  std::function<void(uint32_t process_set)> on_stack_request;
  // Called when a running operation was abandoned: other ranks may still write to its results.
  std::function<void()> on_operation_abandoned;
  // Called by the driving thread when the set ends, before any waiter of its operations is notified.
  std::function<void(const Status& why)> on_end;
  // Called by the driving thread when the set of all ranks has changed its settings; those of other sets never change.
  std::function<void(const control::Settings& settings)> on_settings;
};

class SetEngine {
 public:
  SetEngine(SetParts parts, const SetContext& context);

  uint32_t process_set() const { return config_.process_set; }
  bool Has(int world_rank) const;

  // ---- orders
  void Submit(Operation* operation, int64_t now_ns);
  // Tells the set whether a thread of this rank waits for one of its operations.
  void SetWaiting(bool waiting) { waiting_ = waiting; }
  void Leave(int64_t now_ns);
  void SetComputes(bool computes) { controller_->SetComputes(computes); }
  Status Configure(const std::string& settings) { return controller_->Configure(settings); }
  void Abort(const std::string& why);
  // For a set that is about to end: begins to stop what devices run for it, unless all ranks leave it in order. Sets
  // that end together all begin before one of them waits. Operations that have the data of all ranks still succeed.
  void StopDevices(const Status& why);
  // For a set whose state is half changed: begins to stop devices, and waits until none writes into memory of a caller.
  // AwaitDevices returns the errors of devices that were given up.
  void AbandonDevices(const Status& why);
  std::string AwaitDevices();
  // Abandons the set, whose state is half changed, and tells the ranks that cannot see the reason. The set is not
  // stepped again; the caller fails its pending operations.
  void GiveUp(const Status& why);
  // Logs `text` on all ranks of the set, with this rank's name.
  void SendNote(const std::string& text) { controller_->SendNote(OwnRank() + " " + text); }
  // Ends the set: everything pending fails with `why`. Operations that were agreed on and have the data of all ranks
  // still succeed. Only the first reason counts.
  void EndWith(const Status& why);

  // ---- driving
  struct Progress {
    bool moved = false;    // true if the caller should step again at once
    bool planned = false;  // true if operations were agreed on
  };
  // One pass over the set. `stuck`: all threads of this rank wait for this set, and none of them will submit more by
  // itself.
  Progress Step(int64_t now_ns, bool stuck);
  // Executes the controller's decisions: queues plans in lanes and fails operations. Returns true if there was a plan.
  bool HandOut();
  // Returns the error after which this rank cannot continue, and clears it; ok if there is none.
  Status TakeFault();
  // Warns about operations that make no progress and about ranks that do not leave when all should. Ends the set after
  // the time limit, or at once if a member has left the set alone.
  void CheckOverdue(int64_t now_ns);

  // ---- state, for the progress engine
  bool LanesBusy() const;
  bool HasPending() const { return controller_->HasPending() || !held_back_.empty(); }
  bool alone() const { return config_.ranks.size() == 1; }
  bool HasUnflushed() const { return controller_->HasUnflushed(); }
  bool Ended() const { return (controller_->closed() || !end_reason_.ok()) && !LanesBusy() && held_back_.empty(); }
  int64_t NextWakeNs() const;
  // must_poll: true if news may arrive without a ring of the doorbell. lanes_must_poll: true if a running operation
  // makes progress only when it is stepped.
  bool must_poll() const { return channel_->must_poll() || lanes_must_poll(); }
  bool lanes_must_poll() const;
  // Adds the ranks of the job that this rank waits for: those that delay the running operations, or, if nothing runs,
  // those that have not published their snapshot of the round that this rank has begun.
  void Blame(std::vector<int>* blamed);
  const Status& end() const { return controller_->end(); }
  std::string OwnRank() const { return names_.Text(config_.rank); }
  // Returns why the set ended; ok while it has not, and where its members left it together.
  const Status& end_reason() const { return end_reason_; }
  // True if a library may still use memory of the set's backends.
  bool broken() const;
  const control::ControllerCounters& counters() const { return controller_->counters(); }
  void AddDataCounters(data::DataCounters* sum) const;

 private:
  static std::vector<std::unique_ptr<data::Backend>> AllBackends(SetParts* parts);
  void SubmitToController(Operation* operation, int64_t now_ns);
  // Proposes those operations that need not be held any more; true if `wanted` was one of them.
  bool ProposeHeld(int64_t now_ns, const Operation* wanted = nullptr);
  void ProposeAll(int64_t now_ns);
  bool HasBacklog() const;
  // The index of the lane that runs plan_.
  size_t LaneOfPlan();
  // Runs plan_, an inline allreduce.
  void RunInline();
  void FailOperation(uint64_t op, const Status& status);
  void FailLanes();
  void CheckDeparted();
  void CheckLeaving(int64_t now_ns);
  // Warns about an overdue event, at most once per stall_warn_ns, and ends the set after the limit.
  void Overdue(const std::string& text, int64_t waited_ns, int64_t now_ns);
  void MarkRound(int64_t now_ns);
  void EndAborted(int64_t now_ns);

  const SetConfig config_;
  const control::RankNames names_;
  const std::unique_ptr<control::Controller> controller_;
  const std::unique_ptr<control::Agreement> agreement_;
  const std::unique_ptr<net::RuntimeChannel> channel_;
  const size_t main_lanes_;                                     // those of the selector's backends
  const std::vector<std::unique_ptr<data::Backend>> backends_;  // one for each lane; the main lanes' come first
  OperationTable* const table_;
  Metrics* const metrics_;
  const Logger* const logger_;
  observe::Timeline* const timeline_;
  const std::function<void(uint32_t)> on_stack_request_;
  const std::function<void()> on_operation_abandoned_;
  const std::function<void(const Status&)> on_end_;
  const std::function<void(const control::Settings&)> on_settings_;

  std::vector<Lane> lanes_;
  size_t host_lane_ = 0;  // of the first backend that takes CPU tensors
  SmallLanes small_lanes_;
  HeldBack held_back_;
  InlineLane inline_lane_;
  control::Plan plan_;
  bool waiting_ = false;
  bool aborts_ = false;
  bool stopped_ = false;  // devices have been told to stop
  Status end_reason_;     // why the set cannot continue; ok while it can
  Status fault_;          // of a lane or an inline allreduce; cleared by TakeFault
  int64_t warned_ns_ = 0;
  int64_t left_ns_ = 0;         // since when this rank has been leaving; 0: it is not leaving
  bool saw_departed_ = false;   // true if the channel has reported a departed rank once
  uint64_t marked_rounds_ = 0;  // rounds marked on the timeline so far
  std::vector<int> late_;       // scratch of Blame
};

}  // namespace horocache::runtime
