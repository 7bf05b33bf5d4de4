#include "runtime/diagnostics/stack_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/clock.h"
#include "base/futex.h"

namespace horocache::runtime {
namespace {

// Time limits of the two ways. A thread gets the interpreter's lock after some milliseconds, on a busy machine later.
constexpr int kThreadPatienceMs = 600;
constexpr int64_t kSignalPatienceNs = 400 * kNsPerMs;
constexpr off_t kMostBytes = 1 << 20;

// Globals, because a signal handler gets no other state.
using Handler = void (*)(int);
std::atomic<Handler> interpreters{nullptr};
std::atomic<int (*)(void)> keeps_lock{nullptr};
std::atomic<uint32_t> dumps{0};

void WriteStacks(int signal) {
  const int saved = errno;
  if (keeps_lock.load()() != 0) interpreters.load()(signal);
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

StatusOr<std::unique_ptr<StackSignal>> StackSignal::Arm(const StackSource& source) {
  struct sigaction action{};
  const bool has = sigaction(source.signal, nullptr, &action) == 0 && action.sa_handler != SIG_DFL &&
                   action.sa_handler != SIG_IGN && (action.sa_flags & SA_SIGINFO) == 0;
  if (!has || source.keeps_lock == nullptr) {
    return UnsupportedError("signal " + std::to_string(source.signal) + " has no handler that could write stacks");
  }
  keeps_lock.store(source.keeps_lock);
  if (action.sa_handler != &WriteStacks) interpreters.store(action.sa_handler);
  action.sa_handler = &WriteStacks;
  action.sa_flags |= SA_RESTART;
  if (sigaction(source.signal, &action, nullptr) != 0) return UnsupportedError("the handler cannot be replaced");
  std::unique_ptr<StackSignal> armed(new StackSignal(source));
  armed->due_ = dumps.load();
  return armed;
}

std::string StackSignal::Dump() {
  // The program may have closed the descriptors, and opened its own files under their numbers.
  const bool asks = source_.ask >= 0;
  if (!file_.Is(source_.file) || (asks && !(ask_.Is(source_.ask) && answer_.Is(source_.answer)))) return "";
  if (asked_ && Answered(0)) asked_ = false;
  // Discards an answer that came too late last time.
  if (ftruncate(source_.file, 0) != 0 || lseek(source_.file, 0, SEEK_SET) != 0) return "";
  return AskThread() || SendSignal() ? ReadAll(source_.file) : "";
}

bool StackSignal::AskThread() {
  if (source_.ask < 0) return false;
  if (!asked_ && eventfd_write(source_.ask, 1) != 0) return false;
  asked_ = !Answered(kThreadPatienceMs);
  return !asked_;
}

bool StackSignal::Answered(int patience_ms) const {
  pollfd answer{source_.answer, POLLIN, 0};
  eventfd_t count = 0;
  return poll(&answer, 1, patience_ms) > 0 && eventfd_read(source_.answer, &count) == 0;
}

bool StackSignal::SendSignal() {
  if (tgkill(getpid(), getpid(), source_.signal) != 0) return false;
  ++due_;
  const int64_t deadline_ns = NowNs() + kSignalPatienceNs;
  for (uint32_t seen = dumps.load(); seen != due_; seen = dumps.load()) {
    const int64_t left_ns = deadline_ns - NowNs();
    if (left_ns <= 0) return false;
    FutexWait(dumps, seen, left_ns);
  }
  return true;
}

}  // namespace horocache::runtime
