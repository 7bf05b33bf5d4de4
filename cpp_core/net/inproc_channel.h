// Control channels of N controllers in one thread, deterministic: a seeded schedule decides when words become visible
// and frames arrive. For simulation and tests; nothing here touches a thread or the clock.
//
// Note [Two kinds of delay]
// In shared memory all ranks see words in one order, at once; only rings (and here frames, too) take time. So a rank
// that overlooks a ring is lost, and the wake-up protocol is tested as it is. Over a link words travel like frames, two
// ranks may each miss what the other just wrote, and the arrival itself wakes the reader, because such links are
// polled. `delay_words` chooses the second. Either way what one rank sends to another arrives in the order of sending,
// rings included.
#pragma once

#include <cstdint>
#include <memory>

#include "control/control_channel.h"

namespace horocache::net {

struct InprocConfig {
  int size = 2;
  uint64_t seed = 0;
  // Each visibility and arrival is delayed by a random time up to this; per pair the order is kept.
  int64_t max_delay_ns = 0;
  bool delay_words = true;  // see Note [Two kinds of delay]
};

// A network of channels with a clock of its own.
class InprocNetwork {
 public:
  explicit InprocNetwork(InprocConfig config);
  ~InprocNetwork();

  control::ControlChannel& channel(int rank);
  void AdvanceTo(int64_t now_ns);  // delivers what is due
  int64_t NextDeliveryNs() const;  // kNever if nothing is under way
  bool TakeRung(int rank);         // was rung since the last call
  bool NextRung(int* rank);        // TakeRung over all ranks: some rank that was rung, false if there is none
  void Kill(int rank);             // nothing that it sent and that is still under way arrives

  // Frames and word publications; words that all ranks read in one place count once, words that travel to each rank
  // count for each.
  uint64_t messages() const;
  uint64_t bytes() const;
  uint64_t rings() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace horocache::net
