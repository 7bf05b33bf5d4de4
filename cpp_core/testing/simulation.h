// N ranks, several process sets, one thread and a virtual clock: the real controllers and agreements over in-process
// channels, stepped in a seeded order, with virtual execution of the plans that they decide on.
//
// Whatever the schedule, a run ends: every program comes to its end, every operation completes or fails, and then
// nothing happens any more (in event mode). Otherwise History::run says who waits for what.
//
// Role: one thread, which owns everything.
#pragma once

#include <memory>

#include "testing/history.h"
#include "testing/scenario.h"

namespace horocache::testing {

class Simulation {
 public:
  // Of a scenario that CheckScenario accepts.
  explicit Simulation(Scenario scenario);
  ~Simulation();

  // Runs to the end; call once.
  History Run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs the scenario and checks every property; returns the first violation, or why the scenario makes no sense.
Status RunAndCheck(const Scenario& scenario, History* history = nullptr);

}  // namespace horocache::testing
