#include "runtime/diagnostics/pass_watch.h"

#include <algorithm>
#include <utility>

namespace horocache::runtime {

PassWatch::Verdict PassWatch::Look(uint32_t passes, int64_t warn_ns, int64_t end_ns) {
  const bool same = std::exchange(passes_, passes) == passes;
  const int64_t before_ns = lasts_ns();
  looks_ = same && passes % 2 == 1 ? looks_ + 1 : 0;
  if (end_ns > 0 && lasts_ns() >= std::max(end_ns, kShortestNs)) return Verdict::kStuck;
  const int64_t late_ns = std::max(warn_ns, kEveryNs);
  return before_ns < late_ns && lasts_ns() >= late_ns ? Verdict::kLate : Verdict::kMoves;
}

}  // namespace horocache::runtime
