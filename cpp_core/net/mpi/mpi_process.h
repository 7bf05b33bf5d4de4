// The MPI library of this process: found, initialised and finalised once, for all runtimes.
//
// MPI lives as long as its process and can be initialised only once, so its state is a global of the process and not a
// member of a runtime. If other code (mpi4py) has initialised MPI, horocache uses it and leaves it to that code to
// finalise.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/knobs.h"
#include "base/status.h"
#include "net/mpi/find_library.h"

namespace horocache::net {

struct MpiNeeds {
  MpiSearch search;
  MpiThreads threads = MpiThreads::kMultiple;
  int64_t timeout_ns = 30'000'000'000;
  std::string launcher;  // start of the version text of the launcher's MPI; empty if unknown
};

// Finds MPI and initialises it, if necessary, with at least the thread level needed. The result lives as long as the
// process. kUnsupported, naming the library, if MPI is not found, if it has been finalised, or if its thread level is
// too low. MPI_Init waits for the other ranks and cannot be interrupted: when the time is over, the process ends with a
// message.
StatusOr<Mpi*> AcquireMpi(const MpiNeeds& needs);

// True if this process has loaded an MPI library that has been initialised (by mpi4py, or by the program itself) and
// not been finalised.
bool MpiIsRunning();

// From now on the process ends without MPI_Finalize. To be called after an error: MPI_Finalize would wait for ranks
// that do not come.
void LeaveMpiUnfinalized();

}  // namespace horocache::net
