#include "control/agreements/overdue.h"

#include <algorithm>
#include <string>

#include "base/duration.h"
#include "control/rank_set.h"
#include "control/words.h"

namespace horocache::control {

OverdueTimes OverdueSince(const Controller& controller, int64_t since_ns) {
  const ControllerConfig& config = controller.config();
  const bool looked_for = (controller.Raised() & kStalled) != 0;
  const int64_t warn_ns = looked_for ? config.stall_warn_ns / 4 : config.stall_warn_ns;
  const int64_t fail_ns = std::max<int64_t>(0, config.stall_fail_ns - (looked_for ? config.stall_warn_ns : 0));
  return {since_ns + warn_ns, config.stall_fail_ns == 0 ? kNever : since_ns + fail_ns};
}

Status CheckOverdue(Controller& controller, const OverdueTimes& times, const std::vector<int32_t>& missing,
                    std::string_view perhaps, int64_t now_ns, bool* reported) {
  const bool fail = now_ns >= times.fail_ns;
  if (missing.empty() || (!fail && (*reported || now_ns < times.warn_ns))) return Status::Ok();
  const std::string text = RankText(missing) + (missing.size() == 1 ? " has" : " have") + " not answered round " +
                           std::to_string(controller.round()) + " of process set " +
                           std::to_string(controller.config().process_set) + " (" + std::string(perhaps) + "?)";
  if (fail) return {StatusCode::kStall, text + " within HOROCACHE_STALL_SHUTDOWN_TIME_SECONDS."};
  *reported = true;
  controller.AddReport(text + ".");
  return Status::Ok();
}

}  // namespace horocache::control
