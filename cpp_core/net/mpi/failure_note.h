// What a rank whose start has failed tells those that share no memory with it and may be waiting for it.
#pragma once

#include <vector>

#include "base/status.h"
#include "net/mpi/communicator.h"

namespace horocache::net {

// Waits two seconds at most for what MPI does not take at once. A message that is lost leaves its receiver with its own
// time limit.
void TellFailure(const Communicator& comm, const std::vector<int>& ranks, const Status& why);

// What another rank has told this one; ok if none has told anything. Does not wait for a message.
Status HearFailure(const Communicator& comm);

}  // namespace horocache::net
