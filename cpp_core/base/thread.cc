#include "base/thread.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "base/clock.h"

namespace horocache {

pid_t ThisThread() {
  static thread_local const pid_t thread = gettid();
  return thread;
}

void MakeRoomForExceptions() {
  // Stored in a volatile, because the compiler may leave out a call whose result is unused.
  [[maybe_unused]] volatile const int touched = std::uncaught_exceptions();
}

bool IsAlive(pid_t thread) { return tgkill(getpid(), thread, 0) == 0 || errno != ESRCH; }

void ThreadCpuTime::Begin() {
  clockid_t clock = kNone;
  if (pthread_getcpuclockid(pthread_self(), &clock) == 0) clock_.store(clock);
}

void ThreadCpuTime::End() {
  at_end_ns_.store(Ns());
  clock_.store(kNone);
}

int64_t ThreadCpuTime::Ns() const {
  const clockid_t clock = clock_.load();
  timespec time{};
  if (clock == kNone || clock_gettime(clock, &time) != 0) return at_end_ns_.load();
  return int64_t{time.tv_sec} * kNsPerS + time.tv_nsec;
}

namespace {

struct BlockedSignals {
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  sigset_t before;
};

}  // namespace

NamedThread::NamedThread(const std::string& name, std::function<void()> body) {
  const BlockedSignals blocked;  // the new thread inherits the mask
  thread_ = std::thread([name, body = std::move(body)] {
    MakeRoomForExceptions();
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    body();
  });
}

NamedThread& NamedThread::operator=(NamedThread&& other) noexcept {
  Join();
  thread_ = std::move(other.thread_);
  return *this;
}

bool NamedThread::Abandon() {
  if (!thread_.joinable()) return false;
  thread_.detach();
  return true;
}

void NamedThread::Join() {
  if (thread_.joinable()) thread_.join();
}

LimitedCall::LimitedCall(const std::string& name, std::function<void()> call) {
  auto returned = std::make_shared<std::promise<void>>();
  end_ = returned->get_future();
  thread_ = NamedThread(name, [returned, call = std::move(call)] {
    try {
      call();
    } catch (const std::exception&) {  // see the header
    }
    returned->set_value();
  });
}

LimitedCall::~LimitedCall() {
  if (!Returned()) thread_.Abandon();
}

bool LimitedCall::ReturnedBy(int64_t deadline_ns) const {
  const std::chrono::nanoseconds left(std::max<int64_t>(0, deadline_ns - NowNs()));
  return end_.wait_for(left) == std::future_status::ready;
}

}  // namespace horocache
