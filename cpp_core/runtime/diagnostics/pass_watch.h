// Notices that the driving thread does not come back from a pass: it is in a call of a library, such as NCCL or MPI,
// that does not return. No other thread can end that call, or go on with the rank's part of the job.
//
// Threads: one at a time.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace horocache::runtime {

class PassWatch {
 public:
  // The time between two looks. Looks are counted, not the time: it also passes while the process is stopped.
  static constexpr int64_t kEveryNs = kNsPerS;
  // The shortest limit: on a busy machine the thread may wait for a processor in the middle of a pass.
  static constexpr int64_t kShortestNs = 5 * kNsPerS;

  enum class Verdict { kMoves, kLate, kStuck };

  // `passes` is odd during a pass, and changes with each. kLate once a pass lasts for `warn_ns`, once; kStuck from
  // `end_ns` on (0: never).
  Verdict Look(uint32_t passes, int64_t warn_ns, int64_t end_ns);
  // How long the pass has lasted, at least.
  int64_t lasts_ns() const { return looks_ * kEveryNs; }

 private:
  uint32_t passes_ = 0;
  int64_t looks_ = 0;
};

}  // namespace horocache::runtime
