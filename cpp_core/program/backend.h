// The backend that runs compiled programs: through shared memory within a host, and through MPI between hosts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/backend.h"
#include "data/kernels/fold.h"
#include "net/mpi/communicator.h"
#include "program/library.h"
#include "program/scratch.h"

namespace horocache::program {

struct ProgramResources {
  data::SharedArea links;  // memory for the connections between this host's ranks only
  // Communicator of all ranks for the connections between hosts only; empty if the job has one host.
  net::Communicator comm;
  std::vector<int> host_of;                 // by rank; empty if the job has one host
  std::unique_ptr<data::Backend> built_in;  // runs only the operations that no program can run
  std::shared_ptr<const Library> library;
  const data::KernelSet* kernels = nullptr;
  SharedMemorySource memory;                         // allocates working memory besides the user's tensors
  std::function<void(const std::string& text)> log;  // called once per reason why no program is used; may be empty
};

// Returns the backend's traits, for any number of ranks. Algorithm 0 runs the first program that fits, or the built-in
// backend if none fits. Algorithm i > 0 runs the library's program i - 1 and has its name.
control::BackendTraits ProgramTraits(const Library& library);

std::unique_ptr<data::Backend> MakeProgramBackend(ProgramResources resources);

}  // namespace horocache::program
