// Ranks that do not answer a round: when they are reported, and when the round is given up.
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
  int64_t fail_ns;  // kNever if the round is never given up
  // The time of the next report or failure.
  int64_t NextNs(bool reported) const { return reported ? fail_ns : std::min(warn_ns, fail_ns); }
};

// The times for a round that was demanded at `since_ns`. Once a request of this rank has been pending for the whole
// limit, the ranks get a quarter of the limit to answer before they are reported.
OverdueTimes OverdueSince(const Controller& controller, int64_t since_ns);

// The slow path of CheckOverdue.
Status ReportOverdue(Controller& controller, const OverdueTimes& times, const std::vector<int32_t>& missing,
                     std::string_view perhaps, int64_t now_ns, bool* reported);

// Reports the ranks of `missing()` once (*reported), and fails with kStall when the time is over. A negative `since_ns`
// means that the round was not demanded. `perhaps` is the possible cause, for the message. Cheap until a report is due.
template <typename F>
Status CheckOverdue(Controller& controller, int64_t since_ns, F&& missing, std::string_view perhaps, int64_t now_ns,
                    bool* reported) {
  if (!controller.config().stall_check || since_ns < 0 || controller.closed()) return Status::Ok();
  const OverdueTimes times = OverdueSince(controller, since_ns);
  if (now_ns < times.NextNs(*reported)) return Status::Ok();
  return ReportOverdue(controller, times, missing(), perhaps, now_ns, reported);
}

}  // namespace horocache::control
