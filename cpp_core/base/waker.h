// How a thread that sleeps in poll() is woken by others, whatever the program does with descriptors.
//
// A byte goes through a pair of sockets, and a word says why. Where the program has closed the sockets (see Note
// [Descriptors of ours] in unique_fd.h), the kernel ends the poll, and from then on the thread sleeps on the word: new
// descriptors would take numbers that the program counts on.
//
// Threads: Wake on any; everything else on the one that sleeps.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/unique_fd.h"

namespace horocache {

class Waker {
 public:
  Waker();
  void Wake();
  // Sleeps until Wake was called, one of `polled` has an event, or the time has passed; may return early. One Wake ends
  // one sleep, the next one if nobody sleeps. Without its descriptors it does not look at `polled`.
  void Sleep(std::vector<pollfd>* polled, int64_t timeout_ns);
  // False: there were no descriptors left for it, or the program has closed them.
  bool intact() const { return receives_.intact() && sends_.intact(); }
  // No other waker of this process has the same as long as this one is intact; below 0 without descriptors.
  int number() const { return receives_.get(); }
  // For the child of a fork, where nobody sleeps.
  void CloseInChild();

 private:
  std::atomic<uint32_t> woken_{0};
  UniqueFd receives_, sends_;
};

}  // namespace horocache
