// Detects whether the program computes, from the processor time of its threads, the core's threads excluded.
//
// A rank that others wait for may work for minutes (it evaluates, or prepares data for all ranks), or hang. Processor
// time tells the two apart as far as possible.
//
// Threads: the driving thread.
#pragma once

#include <time.h>

#include <cstdint>

#include "base/duration.h"

namespace horocache::runtime {

class UserTime {
 public:
  static constexpr int64_t kSampleNs = kNsPerS;

  // Takes a sample at most every kSampleNs. `used_ns`: processor time of the process without the core's.
  void Sample(int64_t now_ns, int64_t used_ns) {
    if (since_ns_ != 0 && now_ns - since_ns_ < kSampleNs) return;
    // The threshold: threads that only poll now and then use a smaller share of a core.
    constexpr int64_t kLeastShare = 20;  // that is, 1/20
    if (since_ns_ != 0) computes_ = (used_ns - used_ns_) * kLeastShare >= now_ns - since_ns_;
    since_ns_ = now_ns;
    used_ns_ = used_ns;
  }
  // True if the program computed in the last sampled interval.
  bool computes() const { return computes_; }

  static int64_t OfProcessNs() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return int64_t{time.tv_sec} * kNsPerS + time.tv_nsec;
  }

 private:
  int64_t since_ns_ = 0;
  int64_t used_ns_ = 0;
  bool computes_ = false;
};

}  // namespace horocache::runtime
