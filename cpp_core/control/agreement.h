// The protocol by which the ranks of a process set agree on what to run. An Agreement connects a Controller with a
// ControlChannel and advances in non-blocking steps.
//
// Note [When a round happens]
// Event mode. An idle job exchanges nothing.
// * Flush: a rank flushes its submissions into its hint when one of its threads waits, when a status flag is raised, or
//   after a delay, because more submissions may follow and share the round. The delay ends cycle_time after the first
//   submission or, with "bits" while another rank waits, 0.3 ms after the last flush if that is earlier.
// * Proposal: a rank proposes round k (freezes and publishes its snapshot) when it waits and has a request pending,
//   when it raises a status flag (uncached, leaving, joining, error, stalled), or when the AND of all hints is not
//   empty after a flush. It then rings the ranks that have not published k, if it raised a flag, if the AND is not
//   empty, or if it waits and some rank lingers.
// * Answer: a rank that finds round k proposed for one of these reasons publishes its own snapshot. The last rank to
//   publish rings the others if the round has a result.
// Tick mode. Every rank publishes every cycle_time, with or without work.
//
// Strategies: "bits" (the paper's Algorithms 1 and 2), "leaders" (bits, with one leader per host that speaks for its
// host), "coordinator" (in every round, requests go to rank 0 and responses come back), "tree" (requests merge on their
// way up a radix-r tree). The last two are the designs that the paper compares with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/control_channel.h"
#include "control/controller.h"

namespace horocache::control {

class Agreement {
 public:
  virtual ~Agreement() = default;

  // Advances the protocol as far as possible without waiting. Returns true if anything moved (call again), false if
  // only a ring, a submission or NextWakeNs can help. Not ok: the protocol is broken (a frame does not decode, or the
  // caches differ), and the caller loses the process set with this status.
  virtual StatusOr<bool> Step(Controller& controller, ControlChannel& channel, int64_t now_ns) = 0;

  // The time at which Step must be called even if nothing happens (linger, tick, stall limits); kNever if there is
  // none.
  virtual int64_t NextWakeNs() const = 0;
};

struct AgreementConfig {
  std::string strategy = "bits";
  int radix = 4;
  std::vector<int> host_of;  // host number of each rank; empty: all ranks are on one host
};

// Returns null if the strategy is unknown.
std::unique_ptr<Agreement> MakeAgreement(const AgreementConfig& config);

}  // namespace horocache::control
