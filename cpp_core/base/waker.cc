#include "base/waker.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/clock.h"
#include "base/futex.h"

namespace horocache {
namespace {

// kLookNs: the time between two checks that the descriptors still exist. kNoMemoryNs: the longest sleep while the
// kernel has no memory.
constexpr int64_t kLookNs = kNsPerS;
constexpr int64_t kNoMemoryNs = 100 * kNsPerMs;

}  // namespace

Waker::Waker() {
  std::array<int, 2> pair{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()) != 0) return;
  receives_ = UniqueFd(pair[0]);
  sends_ = UniqueFd(pair[1]);
}

void Waker::Wake() {
  woken_.store(1);
  FutexWake(woken_);
  const char byte = 1;
  // Fails if the socket is full: its bytes wake the thread already.
  if (intact()) static_cast<void>(send(sends_.get(), &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL));
}

void Waker::Sleep(std::vector<pollfd>* polled, int64_t timeout_ns) {
  if (!intact()) {
    FutexWait(woken_, 0, timeout_ns);
    woken_.store(0);
    return;
  }
  const int64_t sleep_ns = std::clamp<int64_t>(timeout_ns, 0, kLookNs);
  polled->push_back({receives_.get(), POLLIN, 0});
  if (woken_.load() == 0) {
    const int found = poll(polled->data(), polled->size(), static_cast<int>((sleep_ns + kNsPerMs - 1) / kNsPerMs));
    if (found < 0) {  // an interrupt, or no memory in the kernel: nothing is known of the descriptors
      for (pollfd& one : *polled) one.revents = 0;
      if (errno != EINTR) FutexWait(woken_, 0, kNoMemoryNs);
    }
  }
  polled->pop_back();
  woken_.store(0);  // before the bytes are read: a Wake in between ends the next sleep
  std::array<char, 64> bytes;
  while (receives_.intact() && recv(receives_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
}

void Waker::CloseInChild() {
  receives_.Close();
  sends_.Close();
}

}  // namespace horocache
