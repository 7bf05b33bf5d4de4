// The connections of a process set's ranks, which run one program after another.
//
// Role: lanes.
#pragma once

#include <cstdint>

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

class Links : public Connections {
 public:
  // For messages of a rank with so many ends; not positive if there is no room. The same on all ranks.
  virtual int64_t MostSlotBytes(Protocol protocol, int ends, int slots) const = 0;
  // Of a connection, if the program leaves it open.
  virtual int usual_slots() const = 0;
  // Begins the next operation. The plan's wirings stay until its end, and longer.
  virtual void Begin(const LinkPlan& plan) = 0;
  // Whether its slots may be used; true from then on.
  virtual bool Ready() = 0;
  // For reports: a rank that has not ended the operation before the last one; -1: none.
  virtual int Behind() const = 0;
  // Whether everything that was pushed has left; asked when everything was pushed and popped.
  virtual bool Settled() { return true; }
  virtual void End() = 0;
  // Wakes the ranks that may wait for what has happened since the last call.
  virtual void Ring() = 0;
  // Whether nobody is woken by what comes.
  virtual bool must_poll() const { return false; }
  // Not ok: they carry nothing any more.
  virtual Status status() const { return Status::Ok(); }
};

}  // namespace horocache::program
