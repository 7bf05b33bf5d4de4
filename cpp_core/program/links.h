// The connections between the ranks of a process set, which run one program after another.
//
// Threads: the driving thread.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/status.h"
#include "program/connection_map.h"
#include "program/connections.h"
#include "program/protocol.h"

namespace horocache::program {

// How one operation uses the links; equal on all ranks.
struct LinkPlan {
  const Wirings* wirings = nullptr;
  Protocol protocol = Protocol::kSimple;
  int slots = 1;
  int64_t slot_bytes = 0;  // bytes of data per slot; at most MostSlotBytes
  int64_t tiles = 1;       // each connection carries its messages once per tile
  int64_t messages() const { return wirings->most_messages * tiles; }  // most messages of a connection
};

// If the status is not ok, the links carry nothing any more.
struct LinkFailure {
  Status status;
  int peer = -1;  // the program's rank at the other end of the failed connection
};

class Links : public Connections {
 public:
  // Returns the most data bytes of a slot in shared memory for a program with these wirings; not positive if there is
  // no room. Equal on all ranks. The wirings must outlive the links.
  virtual int64_t MostSlotBytes(Protocol protocol, const Wirings& wirings, int slots) = 0;
  // Returns the longest message, regardless of the room in shared memory.
  virtual int64_t most_message_bytes() const { return std::numeric_limits<int64_t>::max(); }
  // Returns the number of slots per connection for a program that does not set it.
  virtual int usual_slots() const = 0;
  // Begins the next operation. Its slots may not be used until Ready returns true.
  virtual void Begin(const LinkPlan& plan) = 0;
  // Returns true once the operation's slots may be used.
  virtual bool Ready() = 0;
  // For reports: a rank that has not ended the operation two before the current one; -1: none.
  virtual int Behind() const = 0;
  // Returns true if all pushed messages have left this rank. Called after the operation's last push and pop.
  virtual bool Settled() { return true; }
  // For reports: adds the ranks that have not yet taken such messages.
  virtual void AddUnsettled(std::vector<int>* ranks) const { static_cast<void>(ranks); }
  virtual void End() = 0;
  // Wakes the ranks that may wait for a push, a pop or an end since the last call.
  virtual void Ring() = 0;
  // True if arriving messages wake no thread, so that the caller has to poll.
  virtual bool must_poll() const { return false; }
  virtual LinkFailure failure() const { return {}; }
  // Gives the links up because an operation was abandoned half way. Other ranks may still be sending.
  virtual void Abandon() {}
};

}  // namespace horocache::program
