// A request that several ranks made alike, with those ranks as ascending half-open runs. A subtree of consecutive ranks
// is one run.
#pragma once

#include <cstdint>
#include <vector>

#include "wire/message.h"

namespace horocache::control {

struct RankRun {
  int32_t begin = 0, end = 0;
  bool operator==(const RankRun&) const = default;
};
using RankRuns = std::vector<RankRun>;

struct MergedRequest {
  wire::Request request;
  RankRuns ranks;
  bool operator==(const MergedRequest&) const = default;
};

}  // namespace horocache::control
