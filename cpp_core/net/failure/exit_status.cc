#include "net/failure/exit_status.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "net/bootstrap/bootstrap.h"

namespace horocache::net {
namespace {

// PIDFD_GET_INFO is in Linux 6.13, its exit status in Linux 6.15. Build machines rarely have the header.
struct PidfdInfo {
  uint64_t mask;
  uint64_t cgroup;
  std::array<uint32_t, 11> ids;
  int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr uint64_t kInfoExit = 1 << 3;
constexpr unsigned long kGetInfo = _IOC(_IOC_READ | _IOC_WRITE, 0xff, 11, sizeof(PidfdInfo));

// The exit status, which a pidfd shows once the parent has reaped the process.
std::optional<int> FromPidfd(int pidfd) {
  PidfdInfo info{};
  info.mask = kInfoExit;
  if (ioctl(pidfd, kGetInfo, &info) != 0 || (info.mask & kInfoExit) == 0) return std::nullopt;
  return info.exit_code;
}

// The exit status until the parent has reaped the process.
std::optional<int> FromProc(int pid) {
  const UniqueFd fd(open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 2048> buffer;
  // The kernel shows 0 for another user's process.
  struct stat owner{};
  if (fd.get() < 0 || fstat(fd.get(), &owner) != 0 || owner.st_uid != geteuid()) return std::nullopt;
  const ssize_t got = read(fd.get(), buffer.data(), buffer.size());
  if (got <= 0) return std::nullopt;
  return ExitStatusIn({buffer.data(), static_cast<size_t>(got)});
}

std::string_view SignalName(int signal) {
  static constexpr std::array<std::pair<int, std::string_view>, 14> kNames = {{{SIGHUP, "SIGHUP"},
                                                                               {SIGINT, "SIGINT"},
                                                                               {SIGQUIT, "SIGQUIT"},
                                                                               {SIGILL, "SIGILL"},
                                                                               {SIGTRAP, "SIGTRAP"},
                                                                               {SIGABRT, "SIGABRT"},
                                                                               {SIGBUS, "SIGBUS"},
                                                                               {SIGFPE, "SIGFPE"},
                                                                               {SIGKILL, "SIGKILL"},
                                                                               {SIGSEGV, "SIGSEGV"},
                                                                               {SIGPIPE, "SIGPIPE"},
                                                                               {SIGALRM, "SIGALRM"},
                                                                               {SIGTERM, "SIGTERM"},
                                                                               {SIGXCPU, "SIGXCPU"}}};
  for (const auto& [number, name] : kNames) {
    if (number == signal) return name;
  }
  return "";
}

}  // namespace

std::optional<int> ExitStatusIn(std::string_view stat) {
  const size_t name_end = stat.rfind(')');  // the name may contain anything
  if (name_end == std::string_view::npos || stat.substr(name_end).size() < 4) return std::nullopt;
  // A zombie, or dead: then its parent is reaping it, and the pidfd may not show the status yet.
  const char state = stat[name_end + 2];
  if (state != 'Z' && state != 'X') return std::nullopt;
  while (stat.back() == '\n' || stat.back() == ' ') stat.remove_suffix(1);
  return std::atoi(std::string(stat.substr(stat.rfind(' ') + 1)).c_str());
}

std::string DescribeEnd(int pidfd, int pid) {
  std::optional<int> status = FromPidfd(pidfd);
  if (!status) {
    status = FromProc(pid);
    // If the parent has reaped the process meanwhile, another process may have its number. A pidfd never changes its
    // process.
    if (const std::optional<int> reaped = FromPidfd(pidfd)) status = reaped;
  }
  if (!status) return "exited without shutdown()";
  if (WIFEXITED(*status)) return "exited with code " + std::to_string(WEXITSTATUS(*status)) + " without shutdown()";
  const int signal = WTERMSIG(*status);
  const std::string name(SignalName(signal));
  return "was killed by signal " + std::to_string(signal) + (name.empty() ? "" : " (" + name + ")");
}

}  // namespace horocache::net
