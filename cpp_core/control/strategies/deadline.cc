#include "control/strategies/deadline.h"

#include <algorithm>
#include <string>

#include "base/duration.h"
#include "control/rank_set.h"

namespace horocache::control {

OverdueTimes OverdueSince(const Controller& controller, int64_t since_ns) {
  const int64_t limit_ns = controller.config().stall_warn_ns, fail_ns = controller.config().stall_fail_ns;
  OverdueTimes times{since_ns + limit_ns, since_ns + fail_ns};
  if (const int64_t over_ns = controller.OverLimitSinceNs(); over_ns != kNever) {
    const int64_t asked_ns = std::max(since_ns, over_ns), grace_ns = limit_ns / 4;
    times.warn_ns = std::min(times.warn_ns, asked_ns + grace_ns);
    times.fail_ns = std::min(times.fail_ns, asked_ns + std::max(grace_ns, fail_ns - limit_ns));
  }
  if (fail_ns == 0) times.fail_ns = kNever;
  return times;
}

Status ReportOverdue(Controller& controller, const OverdueTimes& times, const std::vector<int32_t>& missing,
                     std::string_view perhaps, int64_t now_ns, bool* reported) {
  if (missing.empty()) return Status::Ok();
  const std::string text = controller.config().names.Text(missing) + (missing.size() == 1 ? " has" : " have") +
                           " not answered round " + std::to_string(controller.round()) + " of process set " +
                           std::to_string(controller.config().process_set) + " (" + std::string(perhaps) + "?)";
  if (now_ns >= times.fail_ns) return {StatusCode::kStall, text + " within HOROCACHE_STALL_SHUTDOWN_TIME_SECONDS."};
  *reported = true;
  controller.AddReport(text + ".");
  return Status::Ok();
}

}  // namespace horocache::control
