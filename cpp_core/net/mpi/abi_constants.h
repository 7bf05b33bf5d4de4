// Values of MPI's constants in each of the three ABIs. See Note [Three ABIs] in mpi.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"
#include "net/mpi/mpi.h"

namespace horocache::net {

struct MpiConstants {
  uintptr_t world = 0;
  uintptr_t null_request = 0;
  uintptr_t errors_return = 0;
  uintptr_t byte = 0;
  uintptr_t types[kNumDTypes] = {};
  uintptr_t ops[kNumMpiReductions] = {};
  uintptr_t replace = 0;
  uintptr_t null_info = 0;
  int threads[4] = {};  // thread levels, by MpiThreads
  int any_source = 0;
  void* in_place = nullptr;
  void* status_ignore = nullptr;
  // Offset of MPI_SOURCE in MPI_Status, in bytes; MPI_TAG follows it.
  size_t status_source_offset = 0;
};

// kUnsupported, naming file and symbol, if an Open MPI lacks one of its objects.
StatusOr<MpiConstants> ConstantsOf(MpiAbi abi, const DynamicLibrary& library);

}  // namespace horocache::net
