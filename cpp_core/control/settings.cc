#include "control/settings.h"

#include <set>

#include "base/duration.h"
#include "base/text.h"

namespace horocache::control {
namespace {

constexpr int64_t kMostFusionBytes = int64_t{1} << 32;  // as the knob fusion_threshold
constexpr double kMostCycleMs = 1000;                   // as the knob cycle_time

Status BadLine(std::string_view line, const std::string& why) {
  constexpr size_t kMostShown = 256;  // bytes of the line
  return InvalidArgumentError("settings: '" + Printable(line.substr(0, kMostShown)) +
                              (line.size() > kMostShown ? "...': " : "': ") + why);
}

Status CheckText(std::string_view text) {
  if (text.size() > kMaxSettings) {
    return InvalidArgumentError("settings: the text has " + std::to_string(text.size()) + " bytes; at most " +
                                std::to_string(kMaxSettings) + " are possible");
  }
  if (text.find('\0') != std::string_view::npos) return InvalidArgumentError("settings: the text has a zero byte");
  if (text.find_first_not_of('\n') == std::string_view::npos)
    return InvalidArgumentError("settings: the text is empty; write lines name=value");
  return Status::Ok();
}

Status ParseLine(std::string_view line, std::string_view name, std::string_view value, Settings* settings) {
  if (name == "fusion_threshold") {
    int64_t bytes = 0;
    if (!ParseNumber(value, &bytes) || bytes < 0 || bytes > kMostFusionBytes)
      return BadLine(line, "it is a number of bytes from 0 to " + std::to_string(kMostFusionBytes));
    settings->fusion_threshold_bytes = bytes;
  } else if (name == "cycle_time") {
    double ms = 0;
    if (!ParseNumber(value, &ms) || !(ms >= 0 && ms <= kMostCycleMs))
      return BadLine(line, "it is a number of milliseconds from 0 to 1000");
    settings->cycle_time_ns = Nanoseconds(ms, kNsPerMs);
  } else if (name == "cache") {
    if (value != "0" && value != "1") return BadLine(line, "it is 0 or 1");
    settings->cache = value == "1";
  } else if (name == "table") {
    settings->table = value;
  } else if (name == "note") {
    settings->note = value;
  } else {
    return BadLine(line, "no such setting; there are fusion_threshold, cycle_time, cache, table and note");
  }
  return Status::Ok();
}

}  // namespace

StatusOr<Settings> ParseSettings(std::string_view text) {
  HC_RETURN_IF_ERROR(CheckText(text));
  Settings settings;
  std::set<std::string, std::less<>> seen;
  for (const std::string& line : Split(text, '\n')) {
    if (line.empty()) continue;
    const size_t equals = line.find('=');
    if (equals == std::string::npos) return BadLine(line, "write name=value");
    const std::string name = line.substr(0, equals);
    if (!seen.insert(name).second) return BadLine(line, "the name occurs twice");
    HC_RETURN_IF_ERROR(ParseLine(line, name, std::string_view(line).substr(equals + 1), &settings));
  }
  return settings;
}

}  // namespace horocache::control
