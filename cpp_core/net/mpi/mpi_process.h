// The MPI of this process: found, initialised and finalised once, whoever uses it and however often.
//
// MPI lives as long as its process and can be initialised once, so this state is the process's and not a runtime's: the
// one mutable global of the core. What somebody else (mpi4py) has initialised is used, and left to them to finalise.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/knobs.h"
#include "base/status.h"
#include "net/mpi/find_mpi.h"

namespace horocache::net {

struct MpiNeeds {
  MpiSearch search;
  MpiThreads threads = MpiThreads::kMultiple;
  int64_t timeout_ns = 30'000'000'000;
  std::string launcher;  // whose mpiexec started the process, as its library's version begins; empty if unknown
};

// Initialised, with the threads needed; lives as long as the process. kUnsupported, naming the library, if there is no
// MPI, it has been finalised or gives too few threads. MPI_Init waits for the other ranks: when the time is over the
// process ends with a line that says so, as there is no other way out of it.
StatusOr<Mpi*> AcquireMpi(const MpiNeeds& needs);

// Whether a library is loaded here whose MPI has been initialised (by mpi4py, or by the program itself) and not been
// finalised.
bool MpiIsRunning();

// From here on the process ends without MPI_Finalize, which would wait for ranks that do not come: something went
// wrong.
void LeaveMpiUnfinalized();

}  // namespace horocache::net
