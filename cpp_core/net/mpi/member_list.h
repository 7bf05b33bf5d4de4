// Before a communicator of some ranks is made: MPI waits for them inside that call, without a limit, and goes wrong
// where they name different ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/mpi/communicator.h"
#include "net/mpi/mpi.h"

namespace horocache::net {

// Called by the ranks of `comm` that `members` names: the lowest of them compares all lists. kStartup names a rank that
// did not come in time, kInvalidArgument two ranks whose lists differ, and both lists. `call`: what the ranks call with
// their lists, up to the list: "init(comm=". `tag`: of the messages; another for each that may be under way.
Status CompareMembers(Mpi* mpi, MpiComm comm, const std::vector<int>& members, const std::string& call, int tag,
                      int64_t timeout_ns, const WaitCheck& check);

}  // namespace horocache::net
