#include "wire/message.h"

#include <array>

namespace horocache::wire {

std::string_view OpName(Op op) {
  static constexpr std::array<std::string_view, kNumOps> kNames = {
      "allreduce", "allgather", "broadcast", "reducescatter", "alltoall", "reduce", "gather",
      "scatter",   "barrier",   "join",      "register",      "send",     "recv"};
  return kNames.at(static_cast<size_t>(op));
}

std::string_view ReduceOpName(ReduceOp op) {
  static constexpr std::array<std::string_view, kNumReduceOps> kNames = {"average", "sum", "adasum", "min", "max",
                                                                         "product", "and", "or",     "xor"};
  return kNames.at(static_cast<size_t>(op));
}

std::string_view DeviceClassName(DeviceClass device_class) {
  static constexpr std::array<std::string_view, kNumDeviceClasses> kNames = {"cpu", "cuda", "fake"};
  return kNames.at(static_cast<size_t>(device_class));
}

}  // namespace horocache::wire
