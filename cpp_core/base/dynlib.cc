#include "base/dynlib.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <memory>

namespace horocache {
namespace {

std::string RealPath(const char* path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path, nullptr), &std::free);
  return real == nullptr ? path : real.get();
}

struct Search {
  const std::vector<std::string_view>& prefixes;
  std::vector<std::string> found;
};

int Visit(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  const std::string_view path = info->dlpi_name;
  const std::string_view file = path.substr(path.rfind('/') + 1);
  const auto matches = [&](std::string_view prefix) { return file.starts_with(prefix); };
  if (file.empty() || std::ranges::none_of(search->prefixes, matches)) return 0;
  std::string real = RealPath(info->dlpi_name);
  if (std::ranges::find(search->found, real) == search->found.end()) search->found.push_back(std::move(real));
  return 0;
}

}  // namespace

StatusOr<DynamicLibrary> DynamicLibrary::Open(const std::string& name, bool global) {
  DynamicLibrary library;
  library.handle_ = dlopen(name.c_str(), RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
  if (library.handle_ == nullptr) {
    const char* why = dlerror();
    return Status(StatusCode::kUnsupported, why == nullptr ? "cannot load " + name : why);
  }
  link_map* map = nullptr;
  const bool known = dlinfo(library.handle_, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0';
  library.path_ = known ? RealPath(map->l_name) : name;
  return library;
}

void* DynamicLibrary::Find(const char* symbol) const { return handle_ == nullptr ? nullptr : dlsym(handle_, symbol); }

std::vector<std::string> LoadedLibraries(const std::vector<std::string_view>& prefixes) {
  Search search{prefixes, {}};
  dl_iterate_phdr(&Visit, &search);
  return std::move(search.found);
}

}  // namespace horocache
