// Finds the MPI library of this process: the one that is loaded already, else the one that the user has named, else the
// first one found.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/mpi/mpi.h"

namespace horocache::net {

struct MpiSearch {
  std::string library;               // path or file name that the user has named; empty: search
  std::vector<std::string> folders;  // searched before the folders of the dynamic loader
};

// Paths of the MPI libraries that this process has loaded, each library once.
std::vector<std::string> LoadedMpis();

// Loads the MPI library. kUnsupported, naming the files and the remedy, if there is none, if two are loaded, or if the
// user has named another library than the one that is loaded.
StatusOr<std::unique_ptr<Mpi>> FindMpi(const MpiSearch& search);

}  // namespace horocache::net
