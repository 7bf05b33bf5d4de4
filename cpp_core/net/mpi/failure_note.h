// Notes by which a rank tells others over MPI why its start has failed. They go to ranks that share no memory with it
// and may be waiting for it.
#pragma once

#include <vector>

#include "base/status.h"
#include "net/mpi/communicator.h"

namespace horocache::net {

// Sends `why` to `ranks`. Waits two seconds at most for messages that MPI does not take at once. A rank whose message
// is lost waits until its own deadline.
void SendFailure(const Communicator& comm, const std::vector<int>& ranks, const Status& why);

// Returns the failure that another rank has sent to this one; ok if no message has arrived. Does not wait for a
// message.
Status PollFailure(const Communicator& comm);

}  // namespace horocache::net
