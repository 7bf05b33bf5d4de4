// A control channel as a daemon needs it: one that can break, and may have to be polled.
#pragma once

#include "base/status.h"
#include "control/control_channel.h"

namespace horocache::net {

class RuntimeChannel : public control::ControlChannel {
 public:
  // Not ok once a peer wrote what no peer may write (kCorrupt), more was asked for than there is room for (kInternal),
  // or a peer on another host is gone (kPeerLost). The channel then moves nothing more from or to that peer; the caller
  // loses the process set with this status.
  virtual const Status& broken() const = 0;
  // The process set cannot go on here: tells the ranks that cannot see why. Does nothing where all can.
  virtual void TellLost(const Status& why) { static_cast<void>(why); }
  // Whether news may arrive that wake nobody, so that Progress has to be called now and then.
  virtual bool must_poll() const { return false; }
  // This rank leaves: its silence from now on is no loss. `job_lost`: others need not look for a cause here.
  virtual void SayGoodbye(bool job_lost) = 0;
  // A rank that has said so and whose leaving this one sees; -1 if there is none.
  virtual int Departed() = 0;
};

}  // namespace horocache::net
