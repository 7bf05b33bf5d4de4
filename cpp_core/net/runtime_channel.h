// The control channel that a runtime uses: it can break, and it may need polling.
#pragma once

#include "base/status.h"
#include "control/control_channel.h"

namespace horocache::net {

class RuntimeChannel : public control::ControlChannel {
 public:
  // Not ok once a peer has written something invalid (kCorrupt), a request exceeds the room (kInternal), or a peer on
  // another host is gone (kPeerLost). The channel then moves nothing more from or to that peer, and the caller loses
  // the process set with this status.
  virtual const Status& broken() const = 0;
  // The process set cannot go on here: sends the reason to the ranks that cannot see it themselves. Does nothing if all
  // can.
  virtual void NotifyLost(const Status& why) { static_cast<void>(why); }
  // True if news may arrive without a ring, so the caller must call Progress from time to time.
  virtual bool must_poll() const { return false; }
  // Announces that this rank leaves, so that its silence is not taken for a loss. `job_lost`: it leaves because the job
  // is lost, so the other ranks need not look for a cause here.
  virtual void SayGoodbye(bool job_lost) = 0;
  // A rank that has said goodbye without a lost job, as far as this rank can see; -1 if there is none.
  virtual int Departed() = 0;
};

}  // namespace horocache::net
