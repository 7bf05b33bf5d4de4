// Random jobs. Equal options (including the seed) give equal scenarios.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "testing/scenario.h"

namespace horocache::testing {

// Sizes of a job, and the probability of each kind of event in per mille; 0 switches it off.
struct RandomOptions {
  uint64_t seed = 0;
  int ranks = 3;
  int sets = 1;             // the first holds all ranks, others are random
  int steps = 4;            // training steps
  int tensors = 6;          // requests per step and set
  int group = 200;          // a request is a group of 2 to 5 tensors
  int small = 0;            // a request is an allreduce of a few bytes, which may be inline
  int new_name = 50;        // a request of a step has a name that no step had before
  int change = 50;          // a request changes its shape, on all ranks, from this step on
  int priority = 300;       // a request has another priority than 0
  int early_wait = 0;       // after a submission a rank waits for one of its own
  int compute = 200;        // before a submission a rank computes
  int configure = 0;        // before a submission, the first rank of a set changes the set's settings
  int disagree = 0;         // a rank submits another shape, or another priority, than the others
  int forget = 0;           // a rank does not submit a request
  int duplicate = 0;        // a rank submits a request twice
  int join = 0;             // the job ends with ranks joining at different steps
  int kill = 0, pause = 0;  // per job
  int abort = 0;            // per job: a random rank aborts
  int leave_early = 0;      // per rank: leaves before the last step
};

Scenario RandomScenario(const RandomOptions& options);

// Returns the signature of a request for tensors of one element type; `shapes` has one entry per tensor. A group's
// tensors are named name.0, name.1 and so on.
wire::Signature MakeSignature(wire::Op op, const std::string& name, const std::vector<std::vector<int64_t>>& shapes,
                              DType dtype = DType::kFloat32);

}  // namespace horocache::testing
