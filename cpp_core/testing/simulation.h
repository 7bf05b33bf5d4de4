// Simulates the control plane of N ranks and several process sets in one thread with a virtual clock. The controllers
// and agreements are the real ones, over in-process channels. A seed determines the order of their steps. The plans
// that they decide on are executed without data.
//
// With any schedule a run must terminate: every program ends, every operation completes or fails, and then (in event
// mode) nothing happens any more. Otherwise History::run has the operations that the ranks wait for.
//
// Threads: one, which owns everything.
#pragma once

#include <memory>

#include "testing/history.h"
#include "testing/scenario.h"

namespace horocache::testing {

class Simulation {
 public:
  // Requires a scenario that CheckScenario accepts.
  explicit Simulation(Scenario scenario);
  ~Simulation();

  // Runs to the end; call once.
  History Run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs the scenario and checks every property. Returns the first violation, or kInvalidArgument for a bad scenario.
Status RunAndCheck(const Scenario& scenario, History* history = nullptr);

}  // namespace horocache::testing
