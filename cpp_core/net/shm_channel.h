// The control channel of ranks that share an arena (processes of one host, or runtimes of one process).
//
// Words are read where their writer put them. Frames travel through the byte rings between rank 0 and every other rank;
// rank 0's channel passes on, in Progress, what two other ranks send each other.
#pragma once

#include <memory>

#include "base/status.h"
#include "control/control_channel.h"
#include "net/arena.h"

namespace horocache::net {

class ShmChannel : public control::ControlChannel {
 public:
  // Not ok once a peer wrote what no peer may write (kCorrupt), or more was asked for than the arena holds (kInternal).
  // The channel then moves nothing more from or to that peer; the caller loses the process set with this status.
  virtual const Status& broken() const = 0;
};

std::unique_ptr<ShmChannel> MakeShmChannel(std::shared_ptr<Arena> arena, int rank);

}  // namespace horocache::net
