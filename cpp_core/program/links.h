// The connections of a process set's ranks, which run one program after another.
//
// Role: lanes.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/status.h"
#include "program/connections.h"
#include "program/protocol.h"
#include "program/wiring.h"

namespace horocache::program {

// How an operation uses the links; equal on all ranks.
struct LinkPlan {
  const Wirings* wirings = nullptr;
  Protocol protocol = Protocol::kSimple;
  int slots = 1;
  int64_t slot_bytes = 0;  // of data; not more than MostSlotBytes
  int64_t tiles = 1;       // a connection carries as many messages for each of them
  int64_t messages() const { return wirings->most_messages * tiles; }  // that a connection carries, at most
};

// Not ok: the links carry nothing any more.
struct LinkFailure {
  Status status;
  int peer = -1;  // rank of the program with which it happened
};

class Links : public Connections {
 public:
  // For messages in shared memory, where the program's connections are wired so; not positive if there is no room. The
  // same on all ranks. The wirings stay as long as the links.
  virtual int64_t MostSlotBytes(Protocol protocol, const Wirings& wirings, int slots) = 0;
  // Of a message, whatever room there is.
  virtual int64_t most_message_bytes() const { return std::numeric_limits<int64_t>::max(); }
  // Of a connection, if the program leaves it open.
  virtual int usual_slots() const = 0;
  // Begins the next operation.
  virtual void Begin(const LinkPlan& plan) = 0;
  // Whether its slots may be used; true from then on.
  virtual bool Ready() = 0;
  // For reports: a rank that has not ended the operation before the last one; -1: none.
  virtual int Behind() const = 0;
  // Whether everything that was pushed has left; asked when everything was pushed and popped.
  virtual bool Settled() { return true; }
  // For reports: ranks that have to take it.
  virtual void AddUnsettled(std::vector<int>* ranks) const { static_cast<void>(ranks); }
  virtual void End() = 0;
  // Wakes the ranks that may wait for what has happened since the last call.
  virtual void Ring() = 0;
  // Whether nobody is woken by what comes.
  virtual bool must_poll() const { return false; }
  virtual LinkFailure failure() const { return {}; }
  // An operation was given up half way: nothing goes on here, and others may still be sending.
  virtual void Abandon() {}
};

}  // namespace horocache::program
