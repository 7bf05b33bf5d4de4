#include "base/stillness.h"

#include <dirent.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

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

#include "base/clock.h"

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

// The threads of this process; empty if /proc cannot be read.
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

// State of a thread: 'R' if it runs or is runnable, 'D' if it waits for a disk.
char StateOf(const std::string& folder) {
  const std::string line = FirstLine(folder + "stat");
  const size_t name_end = line.rfind(')');  // the name may contain anything
  return name_end == std::string::npos || name_end + 2 >= line.size() ? 'R' : line[name_end + 2];
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

// Processor use of a thread; nullopt if the system does not count it.
std::optional<Stillness::Share> Stillness::ShareOf(const std::string& folder) {
  std::istringstream fields(FirstLine(folder + "schedstat"));
  Share share{};
  uint64_t queued_ns = 0;
  if (!(fields >> share.used_ns >> queued_ns >> share.slices)) return std::nullopt;
  return share;
}

// True if the thread has been still since the last check.
bool Stillness::IsStill(pid_t thread, const Share& share, int64_t passed_ns, bool sleeps_until_woken) const {
  const auto before = seen_->find(thread);
  if (before == seen_->end()) return false;
  if (sleeps_until_woken) return share.slices == before->second.slices;
  constexpr uint64_t kLeastShare = 20;  // a thread that only polls uses less than 1/20 of a processor
  return (share.used_ns - before->second.used_ns) * kLeastShare < static_cast<uint64_t>(passed_ns);
}

bool Stillness::Look(const std::vector<pid_t>& waiting, const std::vector<pid_t>& submitters, Stir allowed) {
  const auto has = [](const std::vector<pid_t>& threads, pid_t thread) {
    return std::ranges::find(threads, thread) != threads.end();
  };
  const int64_t now_ns = NowNs();
  Shares shares;
  bool still = seen_.has_value();
  for (const pid_t thread : Threads()) {
    const std::string folder = kTasks + std::to_string(thread) + "/";
    if (has(waiting, thread) || FirstLine(folder + "comm").starts_with("hc-")) continue;
    const bool submits = has(submitters, thread);
    const bool must_sleep = submits || thread == getpid() || allowed == Stir::kNone;
    // Read before the state: a thread that runs after this reading shows up at the next check.
    const std::optional<Share> share = ShareOf(folder);
    const auto rests = [&] {
      if (must_sleep) return SleepsUntilWoken(FirstLine(folder + "syscall"), !submits);
      const char state = StateOf(folder);
      return state != 'R' && state != 'D';
    };
    if (!share.has_value() || !rests()) {
      Forget();
      return false;
    }
    still = still && IsStill(thread, *share, now_ns - seen_ns_, must_sleep);
    shares.emplace(thread, *share);
  }
  seen_ = std::move(shares);
  seen_ns_ = now_ns;
  return still;
}

}  // namespace horocache
