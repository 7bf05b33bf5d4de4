// Executes plans without data. A plan starts on a member when the member's lane is free. It ends when every member has
// started it and its duration has passed, and then frees the lanes. So an execution order that makes ranks wait for
// each other in a circle stops the simulated job, as it would stop a real one.
//
// Threads: the simulation's one thread, which owns the object.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "control/plan.h"
#include "testing/scenario.h"
#include "testing/seeded_random.h"

namespace horocache::testing {

class DataPlane {
 public:
  struct Done {
    int set = 0, member = 0;
    control::Plan plan;
  };

  explicit DataPlane(const Scenario& scenario);

  void Enqueue(int set, int member, const control::Plan& plan, int64_t now_ns);
  int64_t NextNs() const;
  // Appends the plans that ended by `now_ns`, once per participating member.
  void AdvanceTo(int64_t now_ns, std::vector<Done>* done);
  // `member` has lost the process set: removes and returns its unfinished plans, which will never end.
  std::vector<control::Plan> Drop(int set, int member);
  bool idle() const { return unfinished_ == 0; }
  // Returns an error that names the circle in which ranks wait for each other; Ok if there is none.
  Status FindCircle() const;

 private:
  struct Entry {
    int set, member;
    control::Plan plan;
  };
  struct Lane {
    std::deque<Entry> queue;
    bool running = false;  // true if its head has started
  };
  struct StartedPlan {  // one plan, on all members
    size_t started = 0;
    std::vector<std::pair<int, uint16_t>> lanes;  // owner and lane of each member that has started
  };
  struct Ending {
    int64_t at_ns;
    uint64_t order;
    int set;
    uint64_t sequence;
    bool operator>(const Ending& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : order > other.order;
    }
  };

  int OwnerOf(int set, int member) const;
  void StartHead(int owner, uint16_t lane, int64_t now_ns);
  // For each rank, the ranks that it waits for, with the plan in which it waits.
  using Waits = std::map<int, std::map<int, std::string>>;
  Waits WaitGraph() const;

  const Scenario& scenario_;
  SeededRandom random_;
  std::vector<int> first_owner_;                 // by set: owner number of its first member; members own lanes
  std::vector<std::map<uint16_t, Lane>> lanes_;  // by owner
  std::map<std::pair<int, uint64_t>, StartedPlan> meetings_;
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> endings_;
  uint64_t order_ = 0;
  size_t unfinished_ = 0;
};

}  // namespace horocache::testing
