#include "net/bootstrap/host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>

namespace horocache::net {
namespace {

std::string HostName() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

// Changes with every boot; all containers of one machine have the same.
std::string BootId() {
  const std::unique_ptr<FILE, decltype(&fclose)> file(fopen("/proc/sys/kernel/random/boot_id", "re"), &fclose);
  std::array<char, 64> text = {};
  return file != nullptr && fgets(text.data(), text.size(), file.get()) != nullptr ? text.data() : "";
}

}  // namespace

Host FindHost(const std::string& id, const std::string& directory) {
  if (!id.empty()) return {"id:" + id, id};
  const std::string name = HostName();
  struct stat found{};
  std::string place;
  if (stat(directory.c_str(), &found) == 0) {
    place = std::to_string(found.st_dev) + ":" + std::to_string(found.st_ino);
  }
  return {name + "\n" + BootId() + "\n" + place, name};
}

}  // namespace horocache::net
