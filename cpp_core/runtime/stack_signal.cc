#include "runtime/stack_signal.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/clock.h"
#include "base/futex.h"

namespace horocache::runtime {
namespace {

constexpr int64_t kAnswerPatienceNs = kNsPerS;
constexpr off_t kMostBytes = 1 << 20;

// A handler has no other way to reach anything.
using Handler = void (*)(int);
std::atomic<Handler> interpreters{nullptr};
std::atomic<uint32_t> dumps{0};

void WriteStacks(int signal) {
  const int saved = errno;
  interpreters.load()(signal);
  dumps.fetch_add(1);
  FutexWake(dumps);
  errno = saved;
}

std::string ReadAll(int file) {
  struct stat about{};
  if (fstat(file, &about) != 0) return "";
  std::string text(static_cast<size_t>(std::min<off_t>(about.st_size, kMostBytes)), '\0');
  const ssize_t got = pread(file, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

}  // namespace

StatusOr<std::unique_ptr<StackSignal>> StackSignal::Arm(int signal, int file) {
  struct sigaction action{};
  const bool has = sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_DFL &&
                   action.sa_handler != SIG_IGN && (action.sa_flags & SA_SIGINFO) == 0;
  if (!has) return UnsupportedError("signal " + std::to_string(signal) + " has no handler that could write stacks");
  if (action.sa_handler != &WriteStacks) interpreters.store(action.sa_handler);
  action.sa_handler = &WriteStacks;
  action.sa_flags |= SA_RESTART;
  if (sigaction(signal, &action, nullptr) != 0) return UnsupportedError("the handler cannot be replaced");
  std::unique_ptr<StackSignal> armed(new StackSignal(signal, file));
  armed->due_ = dumps.load();
  return armed;
}

std::string StackSignal::Dump() {
  // Of one that came too late last time.
  if (ftruncate(file_, 0) != 0 || lseek(file_, 0, SEEK_SET) != 0) return "";
  if (tgkill(getpid(), getpid(), signal_) != 0) return "";
  ++due_;
  const int64_t deadline_ns = NowNs() + kAnswerPatienceNs;
  for (uint32_t seen = dumps.load(); seen != due_; seen = dumps.load()) {
    const int64_t left_ns = deadline_ns - NowNs();
    if (left_ns <= 0) return "";
    FutexWait(dumps, seen, left_ns);
  }
  return ReadAll(file_);
}

}  // namespace horocache::runtime
