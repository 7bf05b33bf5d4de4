// Which MPI library this process uses: the one that is loaded already, the one that the user named, or the first found.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "net/mpi/mpi.h"

namespace horocache::net {

struct MpiSearch {
  std::string library;               // a path or a file name that the user chose; empty: search
  std::vector<std::string> folders;  // looked at before those of the dynamic loader
};

// Files that hold an MPI library in this process now, each library once.
std::vector<std::string> LoadedMpis();

// kUnsupported, naming the files and what to do, if there is none, if two are loaded, or if the user chose another than
// the one that is loaded.
StatusOr<std::unique_ptr<Mpi>> FindMpi(const MpiSearch& search);

}  // namespace horocache::net
