// Settings of a process set that change while the job runs.
//
// Note [Settings change in one round]
// Fusion, the response cache and the choice of backends must be the same on all ranks. So rank 0 gives the new settings
// to its controller, and the response list of a round carries them to all ranks, which apply them at the same point:
// after the erasures, before the responses of that round. Each call has a round of its own. A change of the selector's
// table, or switching the cache off, empties the cache, so that every operation is negotiated, and its backend chosen,
// once more. A request that has a cache bit and waits for other ranks then goes to rank 0 like a new one.
//
// Syntax: lines `name=value`, of these names, each at most once:
//   fusion_threshold  bytes
//   cycle_time        milliseconds
//   cache             0 or 1; 1 gives the cache the capacity that it had
//   table             rules of a tuning table (selector.h); they replace those that there were
//   note              any text without a line feed, for the programs of the ranks, see hc_settings in hc.h
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace horocache::control {

inline constexpr size_t kMaxSettings = 256 << 10;  // bytes of text

struct Settings {
  std::optional<int64_t> fusion_threshold_bytes;
  std::optional<int64_t> cycle_time_ns;
  std::optional<bool> cache;
  std::optional<std::string> table;
  std::optional<std::string> note;
  bool operator==(const Settings&) const = default;
};

// kInvalidArgument, naming the line, if a name is unknown or repeated, or a value is out of its range; also if the text
// is empty, too long, or has a zero byte.
StatusOr<Settings> ParseSettings(std::string_view text);

}  // namespace horocache::control
