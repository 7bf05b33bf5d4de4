// Checks the member list of a communicator of some ranks before it is made. MPI waits for the members inside that call,
// without a limit, and goes wrong if they name different ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/mpi/communicator.h"
#include "net/mpi/mpi.h"

namespace horocache::net {

// Called by the ranks of `comm` that are in `members`; the lowest of them compares all lists. kStartup names a rank
// that did not come in time. kInvalidArgument names two ranks whose lists differ, and both lists. `call`: the text of
// the ranks' call up to the list, for messages, such as "init(comm=". `tag`: the MPI tag of the messages; comparisons
// that may run at the same time need different tags.
Status CompareMembers(Mpi* mpi, MpiComm comm, const std::vector<int>& members, const std::string& call, int tag,
                      int64_t timeout_ns, const WaitCheck& check);

}  // namespace horocache::net
