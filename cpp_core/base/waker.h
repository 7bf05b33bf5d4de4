// Wakes a thread that sleeps in poll(), even if the program closes horocache's descriptors.
//
// Wake sets a word and sends a byte through a pair of sockets. If the program has closed the sockets (see Note
// [Checking descriptors before use] in unique_fd.h), the kernel ends the poll, and from then on the thread sleeps on
// the word. The sockets are not replaced: new ones would take numbers that the program counts on.
//
// Threads: any thread calls Wake, the sleeping thread everything else.
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
  // Sleeps until Wake is called, one of `polled` has an event, or the time has passed; may return early. One Wake ends
  // one sleep: the next one if no thread sleeps. Without its descriptors it ignores `polled`.
  void Sleep(std::vector<pollfd>* polled, int64_t timeout_ns);
  // False if no descriptors were left for the sockets, or if the program has closed them.
  bool intact() const { return receives_.intact() && sends_.intact(); }
  // A number that is unique among this process's wakers while this one is intact; below 0 without descriptors.
  int number() const { return receives_.get(); }
  // For the child of a fork, where no thread sleeps.
  void CloseInChild();

 private:
  std::atomic<uint32_t> woken_{0};
  UniqueFd receives_, sends_;
};

}  // namespace horocache
