// Whether the program computes: its threads use the processor, besides those of the core.
//
// A rank that others wait for may be at work for minutes (it evaluates, or prepares data for all), or hang. What it
// does nobody can know, but whether it does anything is in the processor time of its process.
//
// Role: the holder of the runtime's role.
#pragma once

#include <time.h>

#include <cstdint>

#include "base/duration.h"

namespace horocache::runtime {

class UserTime {
 public:
  static constexpr int64_t kSampleNs = kNsPerS;

  // `used_ns`: the processor time of the process without the core's.
  void Sample(int64_t now_ns, int64_t used_ns) {
    if (since_ns_ != 0 && now_ns - since_ns_ < kSampleNs) return;
    // Daemons that look at something now and then use less than this.
    constexpr int64_t kLeastShare = 20;  // one part in so many
    if (since_ns_ != 0) computes_ = (used_ns - used_ns_) * kLeastShare >= now_ns - since_ns_;
    since_ns_ = now_ns;
    used_ns_ = used_ns;
  }
  // In the last second that was looked at.
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
