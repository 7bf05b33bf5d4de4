// The simulation's state and implementation. simulation.cc has the clock and the loop, simulation_actors.cc the steps
// of programs and controllers, simulation_faults.cc the faults.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "control/agreement.h"
#include "control/controller.h"
#include "data/inline_fold.h"
#include "testing/data_plane.h"
#include "testing/history.h"
#include "testing/inproc_channel.h"
#include "testing/sabotaged_channel.h"
#include "testing/schedule.h"
#include "testing/simulation.h"

namespace horocache::testing {

// A member of a process set: one controller with its agreement. Its actor number is `ranks + position in members_`.
struct Member {
  int set = 0, index = 0, rank = 0, actor = 0;
  std::unique_ptr<control::Controller> controller;
  std::unique_ptr<control::Agreement> agreement;
  std::unique_ptr<SabotagedChannel> channel;
  Status lost;      // the reason why it lost the set
  int running = 0;  // operations that are planned and have not ended
  bool stopped = false;
};

// A rank's program. Its actor number is the rank.
struct Application {
  std::vector<Instruction> program;
  size_t next = 0;
  size_t wait_cursor = 0;  // for kWaitAll: number of submissions known to have ended
  std::vector<control::OpId> submitted;
  control::OpId waits_for = control::kNoOp;
  bool alive = true, finished = false;
  int64_t paused_until_ns = 0;
};

// One submitted operation, by its OpId.
struct Submitted {
  int rank = 0, member = 0;
  std::string name;
  bool ended = false;
};

struct Simulation::Impl {
  explicit Impl(Scenario given);

  History Run();

 private:
  Member& MemberOf(int set, int rank);
  MemberHistory& HistoryOf(const Member& member) {
    return history_.sets[static_cast<size_t>(member.set)].members[static_cast<size_t>(member.index)];
  }
  bool Advance();
  bool TakeRings();
  void EndPlans();
  void HearOfLosses();
  void Step(int actor);
  void StepApplication(int rank);
  bool StepWait(int rank, control::OpId op);
  void Submit(int rank, const Instruction& instruction);
  void Configure(Member& member, const std::string& settings);
  void Leave(Member& member);
  void StepMember(Member& member);
  void Drain(Member& member);
  void RunInline(Member& member);
  void UpdateWaiting(Member& member);
  void End(const Member& member, control::OpId op, const Status& status, bool rejected = false);
  void ApplyFaults();
  void Kill(const Fault& fault);
  void EndMember(Member& member, const Status& why);
  bool Finished() const;
  Status AtRest() const;

  const Scenario scenario_;
  Schedule schedule_;
  DataPlane data_plane_;
  std::vector<std::unique_ptr<InprocNetwork>> networks_;
  std::vector<Member> members_;
  std::vector<size_t> first_member_;  // of each set
  std::vector<std::vector<int>> members_of_rank_;
  std::vector<Application> applications_;
  std::vector<Submitted> operations_;                            // by OpId
  std::vector<std::pair<int64_t, std::pair<int, int>>> losses_;  // (time, (member to notify, killed rank))
  std::vector<Fault> faults_;                                    // faults that have not been injected
  std::vector<DataPlane::Done> done_;
  control::Plan plan_;
  data::InlineFold fold_;
  History history_;
  int64_t now_ns_ = 0;
  bool broken_ = false;
};

}  // namespace horocache::testing
