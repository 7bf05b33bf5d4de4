// Ranks that do not answer a round: when that is reported, and when it is given up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "control/controller.h"

namespace horocache::control {

struct OverdueTimes {
  int64_t warn_ns;
  int64_t fail_ns;  // kNever if nothing is given up
  // When there is something to do next.
  int64_t NextNs(bool reported) const { return reported ? fail_ns : std::min(warn_ns, fail_ns); }
};

// Of a round that was demanded at `since_ns`. Once something here has been pending for the whole limit, the ranks are
// asked because of that: they get a quarter of the limit to answer.
OverdueTimes OverdueSince(const Controller& controller, int64_t since_ns);

// For CheckOverdue.
Status ReportOverdue(Controller& controller, const OverdueTimes& times, const std::vector<int32_t>& missing,
                     std::string_view perhaps, int64_t now_ns, bool* reported);

// Reports the ranks that `missing()` names once (*reported), and fails with kStall when the time is over; below 0, the
// round was not demanded. `perhaps` says what may be the cause. Cheap until there is something to say.
template <typename F>
Status CheckOverdue(Controller& controller, int64_t since_ns, F&& missing, std::string_view perhaps, int64_t now_ns,
                    bool* reported) {
  if (!controller.config().stall_check || since_ns < 0 || controller.closed()) return Status::Ok();
  const OverdueTimes times = OverdueSince(controller, since_ns);
  if (now_ns < times.NextNs(*reported)) return Status::Ok();
  return ReportOverdue(controller, times, missing(), perhaps, now_ns, reported);
}

}  // namespace horocache::control
