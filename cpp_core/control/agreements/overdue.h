// Ranks that do not answer a round: when that is reported, and when it is given up.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "control/controller.h"

namespace horocache::control {

struct OverdueTimes {
  int64_t warn_ns;
  int64_t fail_ns;  // kNever if nothing is given up
};

// Of a round that was demanded at `since_ns`. Somebody's operation has already waited for the whole limit when the
// stalled flag goes up, so a rank that does not answer that has been silent for longer.
OverdueTimes OverdueSince(const Controller& controller, int64_t since_ns);

// Reports `missing` once (*reported), and fails with kStall when the time is over. `perhaps` says what may be the
// cause.
Status CheckOverdue(Controller& controller, const OverdueTimes& times, const std::vector<int32_t>& missing,
                    std::string_view perhaps, int64_t now_ns, bool* reported);

}  // namespace horocache::control
