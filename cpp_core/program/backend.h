// The backend that runs compiled programs: through the memory of a host, and between hosts through MPI.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/backend.h"
#include "data/kernels/fold.h"
#include "net/mpi/communicator.h"
#include "program/library.h"
#include "program/work_buffer.h"

namespace horocache::program {

struct ProgramMeans {
  data::SharedArea links;  // memory of the connections between this host's ranks, and nothing else's
  // Of all ranks, for the connections between hosts and nothing else; empty on one host.
  net::Communicator comm;
  std::vector<int> host_of;                 // by rank; empty on one host
  std::unique_ptr<data::Backend> built_in;  // runs what no program can, and nothing else
  std::shared_ptr<const Library> library;
  const data::KernelSet* kernels = nullptr;
  SharedMemorySource memory;                         // for what programs work on besides the user's tensors
  std::function<void(const std::string& text)> log;  // told once why a program is not used; may be empty
};

// What it can do, without one, on any number of ranks. Algorithm 0 takes the first program that fits, and the built-in
// backend where none does; the others are the programs by name, in the order of the library.
control::BackendTraits ProgramTraits(const Library& library);

std::unique_ptr<data::Backend> MakeProgramBackend(ProgramMeans means);

}  // namespace horocache::program
