// A shared library that is found at run time, and the symbols in it.
//
// Never unloaded: the libraries that horocache loads (MPI, NCCL, CUDA) start threads and register exit handlers of
// their own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace horocache {

class DynamicLibrary {
 public:
  DynamicLibrary() = default;

  // Loads a library. `name` is a path, or a file name that the dynamic loader looks for. With `global`, the library's
  // own plug-ins see its symbols. kUnsupported, with the loader's message, if it cannot be loaded.
  static StatusOr<DynamicLibrary> Open(const std::string& name, bool global);

  // Null if the library has no such symbol.
  void* Find(const char* symbol) const;
  bool Has(const char* symbol) const { return Find(symbol) != nullptr; }

  // The file that was loaded.
  const std::string& path() const { return path_; }

 private:
  void* handle_ = nullptr;
  std::string path_;
};

// Paths of the libraries that this process has loaded and whose file names begin with one of `prefixes`, each file
// once, in the order in which they were loaded.
std::vector<std::string> LoadedLibraries(const std::vector<std::string_view>& prefixes);

}  // namespace horocache
