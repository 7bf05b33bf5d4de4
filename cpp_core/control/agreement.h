// How the ranks of a process set reach agreement: the protocol that connects a Controller with a ControlChannel, one
// non-blocking step at a time.
//
// Note [When a round happens]
// Event mode. Submissions are flushed into the rank's hint when a thread of the rank waits, when a status flag is
// raised, or after a while: others may be about to follow, and share the round. That is cycle_time after the first, or,
// with "bits" as long as another rank waits, 0.3 ms after the last flush. A rank proposes round k (freezes and
// publishes its snapshot) when it waits with something pending, when it raises a status flag (uncached, leaving,
// joining, error, stalled), or when a flush finds that the AND of all hints is not empty; it then rings the ranks that
// have not published k and have to: all of them for a flag or a non-empty AND, those that linger when a wait begins. A
// rank that finds round k proposed for one of these reasons answers with its own snapshot. The last to publish rings
// the others if there is a result. An idle job does nothing. Tick mode. Every rank publishes every cycle_time, work or
// not.
//
// Strategies: "bits" (the paper's Algorithms 1 and 2), "leaders" (bits, with one leader per host that speaks for its
// host), "coordinator" (every round, requests go to rank 0 and responses come back), "tree" (requests merge up a
// radix-r tree). The last two are the designs that the paper compares with.
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

  // As far as it goes without waiting; returns true if anything moved (call again), false if only a ring, a submission
  // or NextWakeNs can help. Not ok: the protocol is broken (a frame that does not decode, caches that differ); the
  // caller loses the process set with this status.
  virtual StatusOr<bool> Step(Controller& controller, ControlChannel& channel, int64_t now_ns) = 0;

  // When Step must be called again even if nothing happens (linger, tick, stall limits); kNever for never.
  virtual int64_t NextWakeNs() const = 0;
};

struct AgreementConfig {
  std::string strategy = "bits";
  int radix = 4;
  std::vector<int> host_of;  // host number of each rank; empty: all on one host
};

std::unique_ptr<Agreement> MakeAgreement(const AgreementConfig& config);

}  // namespace horocache::control
