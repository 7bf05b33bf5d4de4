#include "data/validate.h"

#include <string>

#include "data/kernels/fold.h"
#include "data/row_layout.h"

namespace horocache::data {

uint32_t AllCollectives() {
  uint32_t bits = 0;
  for (size_t op = 0; op < wire::kOps.size(); ++op) bits |= wire::kOps[op].on_backends ? 1u << op : 0u;
  return bits;
}

Status CheckCollective(const Collective& collective, const control::BackendTraits& traits, int ranks) {
  const std::string op(wire::OpName(collective.op));
  if ((traits.ops >> static_cast<int>(collective.op) & 1u) == 0) {
    return Status(StatusCode::kUnsupported, "backend " + traits.name + " has no " + op);
  }
  if ((traits.device_classes >> static_cast<int>(collective.device_class) & 1u) == 0) {
    return Status(StatusCode::kUnsupported, "backend " + traits.name + " cannot reach " +
                                                std::string(wire::DeviceClassName(collective.device_class)) +
                                                " memory; copy the tensor to the host first");
  }
  if (!traits.algorithms.empty() && collective.algorithm >= traits.algorithms.size()) {
    return Status(StatusCode::kUnsupported,
                  "backend " + traits.name + " has no algorithm number " + std::to_string(collective.algorithm));
  }
  for (const int32_t joined : collective.joined) {
    if (joined >= 0 && joined < ranks) continue;
    return Status(StatusCode::kInvalidArgument, op + ": joined rank " + std::to_string(joined) + " is not one of " +
                                                    std::to_string(ranks) + " ranks");
  }
  if (wire::HasRoot(collective.op)) {
    if (collective.root < 0 || collective.root >= ranks) {
      return Status(StatusCode::kInvalidArgument, op + ": root " + std::to_string(collective.root) + " is not one of " +
                                                      std::to_string(ranks) + " ranks");
    }
    if (HasJoined(collective, collective.root)) {
      return Status(StatusCode::kInvalidArgument,
                    op + ": root " + std::to_string(collective.root) +
                        " has joined, so it neither gives nor takes data; choose another root");
    }
  }
  if (!wire::HasReduceOp(collective.op)) return Status::Ok();
  return CheckFold(collective.dtype, collective.reduce_op,
                   {.before = collective.prescale, .after = collective.postscale});
}

}  // namespace horocache::data
