// The lanes for small operations of a process set.
//
// Note [Small lanes]
// The operations of a lane run one after the other, so a small one would wait for all of a large one before it. Each
// backend of the host therefore has further lanes, with memory and communicators of their own, which small operations
// take in turn: of these, also several are under way at once. The lane follows from the plan, which all ranks have in
// one order, so that all ranks take the same one.
//
// These stay in the main lane: operations whose sizes differ by rank, which may be large on one rank and small on
// another; and groups of several plans, which end with their last plan.
//
// Threads: the driving thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "control/plan.h"

namespace horocache::runtime {

class SmallLanes {
 public:
  explicit SmallLanes(int64_t most_bytes) : most_bytes_(most_bytes) {}

  // Adds a lane of a backend.
  void Add(size_t backend, size_t lane);
  // The lane that runs the next plan of a backend. The main lane has the backend's number.
  size_t Next(size_t backend, const control::Plan& plan);

 private:
  struct Ring {
    std::vector<size_t> lanes;
    size_t next = 0;
  };

  bool IsSmall(const control::Plan& plan) const;

  int64_t most_bytes_;
  std::vector<Ring> rings_;  // by backend
};

}  // namespace horocache::runtime
