#include "base/stillness.h"

#include <dirent.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace horocache {
namespace {

constexpr char kTasks[] = "/proc/self/task/";

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};

// Empty if /proc cannot be read.
std::vector<pid_t> Threads() {
  const std::unique_ptr<DIR, CloseFolder> folder(opendir(kTasks));
  std::vector<pid_t> threads;
  while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    pid_t thread = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), thread).ec == std::errc()) threads.push_back(thread);
  }
  return threads;
}

// How often a thread has been given a processor; none if the system does not count it.
std::optional<uint64_t> Slices(const std::string& folder) {
  std::istringstream fields(FirstLine(folder + "schedstat"));
  uint64_t running_ns = 0;
  uint64_t waiting_ns = 0;
  uint64_t slices = 0;
  if (!(fields >> running_ns >> waiting_ns >> slices)) return std::nullopt;
  return slices;
}

}  // namespace

bool SleepsUntilWoken(const std::string& syscall_line, bool limited) {
  std::istringstream fields(syscall_line);
  int64_t number = -1;
  uint64_t arguments[4] = {};
  if (!(fields >> std::dec >> number)) return false;  // "running"
  for (uint64_t& argument : arguments) {
    if (!(fields >> std::hex >> argument)) return false;
  }
  if (number == SYS_nanosleep) return limited;
  if (number == SYS_clock_nanosleep) return limited && arguments[0] == CLOCK_REALTIME && arguments[1] == 0;
  const uint64_t what = arguments[1];
  const uint64_t command = what & FUTEX_CMD_MASK;
  const bool waits = command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET;
  return number == SYS_futex && waits && (what & FUTEX_PRIVATE_FLAG) != 0 && (limited || arguments[3] == 0);
}

bool Stillness::Look(const std::vector<pid_t>& waiting, const std::vector<pid_t>& submitters) {
  const auto has = [](const std::vector<pid_t>& threads, pid_t thread) {
    return std::ranges::find(threads, thread) != threads.end();
  };
  std::map<pid_t, uint64_t> slices;
  for (const pid_t thread : Threads()) {
    const std::string folder = kTasks + std::to_string(thread) + "/";
    if (has(waiting, thread) || FirstLine(folder + "comm").starts_with("hc-")) continue;
    // The count first: a thread that runs after it was counted shows at the next look.
    const std::optional<uint64_t> count = Slices(folder);
    if (!count.has_value() || !SleepsUntilWoken(FirstLine(folder + "syscall"), !has(submitters, thread))) {
      Forget();
      return false;
    }
    slices.emplace(thread, *count);
  }
  const bool still = !slices.empty() && slices == slices_;
  slices_ = std::move(slices);
  return still;
}

}  // namespace horocache
