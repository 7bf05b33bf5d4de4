// One process set on one rank: its controller, agreement, channel, backends and lanes.
//
// Note [What belongs to a set and what to the rank]
// Who drives, where a rank sleeps, what was submitted and which threads wait belong to the rank: CoordinatorLoop has
// them once, and steps every set that the rank is a member of. What ranks agree on, and what runs because of it,
// belongs to a set. Sets share the doorbell, the operation table, the metrics and nothing else, so a set that fails
// leaves the others alone, and sets that cross each other in any way need no order between them: each moves whenever it
// can, and none is ever waited for. Inside a set ranks have numbers of their own; whatever leaves it (messages,
// metrics) names ranks of the job.
//
// Role: the holder of the rank's role, see Note [The role] in coordinator_loop.h. Owns the set's parts; the operations
// belong to the table.
#pragma once

#include <cstdint>
#include <functional>
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
#include "runtime/fault.h"
#include "runtime/lane.h"
#include "runtime/metrics.h"
#include "runtime/operation_table.h"
#include "runtime/rides.h"

namespace horocache::runtime {

struct SetConfig {
  uint32_t process_set = 0;
  std::vector<int> ranks;  // of the job, by rank within the set
  int rank = 0;            // of this process, within the set
  bool stall_check = true;
  int64_t stall_warn_ns = 0;
  int64_t stall_fail_ns = 0;
};

// What a set is made of, on a rank that is a member of it.
struct SetParts {
  SetConfig config;
  std::unique_ptr<control::Controller> controller;
  std::unique_ptr<control::Agreement> agreement;
  std::unique_ptr<net::RuntimeChannel> channel;
  std::vector<std::unique_ptr<data::Backend>> backends;
  const data::KernelSet* kernels = nullptr;  // for what needs no backend
};

// What all sets of a rank share; outlives them.
struct SetContext {
  OperationTable* table = nullptr;
  Metrics* metrics = nullptr;
  const FaultInjector* faults = nullptr;
  const Logger* logger = nullptr;
  observe::Timeline* timeline = nullptr;
  // The other ranks want to know where this one is; answered with Tell. By the holder of the role.
  std::function<void(uint32_t process_set)> on_question;
  // An operation was given up half way: other ranks may go on to write its results.
  std::function<void()> on_given_up;
  // The set is lost, before anybody who waits for an operation of it is told. By the holder of the role.
  std::function<void(const Status& why)> on_lost;
};

class SetLoop {
 public:
  SetLoop(SetParts parts, const SetContext& context);

  uint32_t process_set() const { return config_.process_set; }
  bool Has(int world_rank) const;

  // ---- orders
  void Submit(Operation* operation, int64_t now_ns);
  // Whether a thread of this rank waits for an operation of this set.
  void SetWaiting(bool waiting) { waiting_ = waiting; }
  void Leave(int64_t now_ns);
  void SetComputes(bool computes) { controller_->SetComputes(computes); }
  void Abort(const std::string& why) {
    aborts_ = true;
    controller_->Abort(why);
  }
  // What is going on here was left half done: tells those ranks that cannot see why. Nothing else of it is looked at
  // again, and what is pending is the caller's to end.
  void GiveUp(const Status& why);
  // For the people of all ranks of the set, who are told which rank says it.
  void Tell(const std::string& text) { controller_->Tell(OwnRank() + " " + text); }
  // Everything pending fails with `why`; what was agreed before and needs nobody any more still ends well. The first
  // reason counts.
  void Lose(const Status& why);

  // ---- driving
  struct Progress {
    bool moved = false;    // call again at once
    bool planned = false;  // something was agreed
  };
  // One pass over everything. `stuck`: every thread of this rank waits for this set, and nothing more will come from
  // here by itself.
  Progress Step(int64_t now_ns, bool stuck);
  // Hands out what the controller has decided: plans to the lanes, failures to the table; true if there was a plan.
  bool HandOut();
  // Why this rank cannot go on, once: an injected fault; ok if it can.
  Status TakeFault();
  // Reports, and after the limit ends, what does not move in the data plane, and ranks that do not leave when all do;
  // ends the set if a rank has left it without the others.
  void CheckOverdue(int64_t now_ns);

  // ---- what the rank's loop asks
  bool LanesBusy() const;
  bool HasPending() const { return controller_->HasPending(); }
  bool alone() const { return config_.ranks.size() == 1; }
  bool HasUnflushed() const { return controller_->HasUnflushed(); }
  bool Ended() const { return (controller_->closed() || !lost_.ok()) && !LanesBusy(); }
  int64_t NextWakeNs() const;
  // Whether there may be news that wake nobody; and whether something that runs goes on only while it is stepped.
  bool must_poll() const { return channel_->must_poll() || lanes_must_poll(); }
  bool lanes_must_poll() const;
  // Adds whom this rank waits for, as ranks of the job: those that do not do their part of what runs, or, if nothing
  // runs, those that have nothing to say to the round that this rank has begun.
  void Blame(std::vector<int>* blamed);
  const Status& end() const { return controller_->end(); }
  std::string OwnRank() const { return names_.Text(config_.rank); }
  // Why it was lost; ok if it was not.
  const Status& lost() const { return lost_; }
  // A library still uses memory of its backends.
  bool broken() const;
  const control::ControllerCounters& counters() const { return controller_->counters(); }
  void AddDataCounters(data::DataCounters* sum) const;

 private:
  // Runs the plan at hand, which rode on its round.
  void Ride();
  void FailOperation(uint64_t op, const Status& status);
  void FailLanes();
  void CheckDeparted();
  void CheckLeaving(int64_t now_ns);
  // Warns of what is overdue, not too often, and ends the set after the limit.
  void Overdue(const std::string& text, int64_t waited_ns, int64_t now_ns);
  void MarkRound(int64_t now_ns);
  void EndAborted(int64_t now_ns);

  const SetConfig config_;
  const control::RankNames names_;
  const std::unique_ptr<control::Controller> controller_;
  const std::unique_ptr<control::Agreement> agreement_;
  const std::unique_ptr<net::RuntimeChannel> channel_;
  const std::vector<std::unique_ptr<data::Backend>> backends_;
  OperationTable* const table_;
  const Logger* const logger_;
  observe::Timeline* const timeline_;
  const std::function<void(uint32_t)> on_question_;
  const std::function<void()> on_given_up_;
  const std::function<void(const Status&)> on_lost_;

  std::vector<Lane> lanes_;
  Rides rides_;
  control::Plan plan_;
  bool waiting_ = false;
  bool aborts_ = false;
  Status lost_;   // why the set cannot go on; ok while it can
  Status fault_;  // that a lane met, not taken yet
  int64_t warned_ns_ = 0;
  int64_t left_ns_ = 0;         // since when this rank has wanted to leave; 0: it does not
  bool saw_departed_ = false;   // once already
  uint64_t marked_rounds_ = 0;  // on the timeline
  std::vector<int> late_;       // ranks that something here waits for
};

}  // namespace horocache::runtime
