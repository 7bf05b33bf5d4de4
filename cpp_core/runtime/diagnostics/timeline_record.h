// Converts operations to records of the timeline.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "control/plan.h"
#include "observe/trace_text.h"
#include "runtime/submission/operation.h"

namespace horocache::runtime {

// The bytes of this rank's tensors. A signature does not have them where the number of rows differs by rank.
inline int64_t BytesOfTensors(const Operation& operation) {
  const std::vector<wire::TensorMeta>& tensors = operation.request.signature.tensors;
  int64_t bytes = 0;
  for (size_t i = 0; i < std::min(tensors.size(), operation.tensors.size()); ++i)
    bytes += operation.tensors[i].count * static_cast<int64_t>(DTypeBytes(tensors[i].dtype));
  return bytes;
}

// Returns the record of an operation that ends now with `status`. Leaves the fields of the lane open. The record points
// to texts of `operation` and `status`.
inline observe::OperationTrace TraceOf(const Operation& operation, const Status& status, int64_t now_ns) {
  const wire::Signature& signature = operation.request.signature;
  observe::OperationTrace trace;
  trace.name = signature.name;
  trace.op = wire::OpName(signature.op);
  if (!status.ok()) trace.error = status.message();
  if (wire::HasReduceOp(signature.op)) trace.reduce_op = wire::ReduceOpName(signature.reduce_op);
  if (!signature.tensors.empty()) trace.dtype = DTypeName(signature.tensors.front().dtype);
  trace.layers = signature.layers;
  trace.process_set = operation.process_set;
  trace.tensors = static_cast<int32_t>(signature.tensors.size());
  trace.bytes = BytesOfTensors(operation);
  trace.first_ready_ns = operation.first_ready_ns;
  trace.submitted_ns = operation.submitted_ns;
  trace.ended_ns = now_ns;
  return trace;
}

// The same for an operation that was an item of `plan`.
inline observe::OperationTrace TraceOf(const Operation& operation, const control::Plan& plan,
                                       const control::PlanItem& item, const Status& status, int64_t now_ns) {
  observe::OperationTrace trace = TraceOf(operation, status, now_ns);
  trace.agreed_ns = plan.agreed_ns;
  trace.sequence = plan.sequence;
  trace.item = static_cast<uint32_t>(&item - plan.items.data());
  trace.fused = static_cast<uint32_t>(plan.items.size());
  trace.chosen_by = wire::ChosenByName(item.chosen_by);
  return trace;
}

}  // namespace horocache::runtime
