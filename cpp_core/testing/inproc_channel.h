// Control channels of N controllers in one thread, deterministic: a seeded schedule decides when words become visible
// and when frames arrive. For simulation and tests. Uses no other thread and no clock.
//
// Note [Two kinds of delay]
// In shared memory all ranks see words in one order, at once. Only rings (and here frames, too) take time. A rank that
// misses a ring then sleeps for ever, so this kind tests the wake-up protocol as it is. Over a network, words travel
// like frames: two ranks may each miss what the other has just written, and the arrival itself wakes the reader,
// because such links are polled. `delay_words` selects the second kind. In both kinds, everything that one rank sends
// to another arrives in the order of sending, including rings.
#pragma once

#include <cstdint>
#include <memory>

#include "control/control_channel.h"

namespace horocache::testing {

struct InprocConfig {
  int size = 2;
  uint64_t seed = 0;
  // Each visibility and arrival is delayed by a random time of at most this much. The order is kept per pair.
  int64_t max_delay_ns = 0;
  bool delay_words = true;  // see Note [Two kinds of delay]
};

// A network of channels with a clock of its own. Owns the channels.
class InprocNetwork {
 public:
  explicit InprocNetwork(InprocConfig config);
  ~InprocNetwork();

  control::ControlChannel& channel(int rank);
  void AdvanceTo(int64_t now_ns);  // delivers what is due
  int64_t NextDeliveryNs() const;  // kNever if nothing is in flight
  bool TakeRung(int rank);         // true if it was rung since the last call
  bool NextRung(int* rank);        // TakeRung for any rank that was rung; false if there is none
  void Kill(int rank);             // drops everything from and to the rank that has not arrived

  // Frames and word publications. Words that all ranks read in one place count once. Words that travel count once for
  // each reader.
  uint64_t messages() const;
  uint64_t bytes() const;
  uint64_t rings() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace horocache::testing
