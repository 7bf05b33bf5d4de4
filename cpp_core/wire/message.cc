#include "wire/message.h"

#include <array>

#include "base/text.h"

namespace horocache::wire {

std::string_view OpName(Op op) { return kOps.at(static_cast<size_t>(op)).name; }

std::string_view ReduceOpName(ReduceOp op) {
  static constexpr std::array<std::string_view, kNumReduceOps> kNames = {"average", "sum", "adasum", "min", "max",
                                                                         "product", "and", "or",     "xor"};
  return kNames.at(static_cast<size_t>(op));
}

std::string_view DeviceClassName(DeviceClass device_class) {
  static constexpr std::array<std::string_view, kNumDeviceClasses> kNames = {"cpu", "cuda", "fake"};
  return kNames.at(static_cast<size_t>(device_class));
}

std::string_view DivideByName(DivideBy divide_by) {
  static constexpr std::array<std::string_view, kNumDivideBys> kNames = {"all", "active"};
  return kNames.at(static_cast<size_t>(divide_by));
}

std::string_view ChosenByName(ChosenBy chosen_by) {
  static constexpr std::array<std::string_view, kNumChosenBys> kNames = {"order", "call", "rule", "table"};
  return kNames.at(static_cast<size_t>(chosen_by));
}

StatusOr<DivideBy> ParseDivideBy(std::string_view name) {
  for (const DivideBy divide_by : {DivideBy::kAll, DivideBy::kActive}) {
    if (name == DivideByName(divide_by)) return divide_by;
  }
  return Status(StatusCode::kInvalidArgument,
                "divide_by='" + Printable(std::string(name)) + "'; it is 'all' (ranks) or 'active' (those with data).");
}

}  // namespace horocache::wire
