// An operation as the timeline shows it.
#pragma once

#include "control/signature.h"
#include "observe/trace_text.h"
#include "runtime/operation.h"

namespace horocache::runtime {

// That ends now, with `status`; what the lane knows of it is left open. Its texts are the operation's and the status's.
inline observe::OperationTrace TraceOf(const Operation& operation, const Status& status, int64_t now_ns) {
  const wire::Signature& signature = operation.request.signature;
  observe::OperationTrace trace;
  trace.name = signature.name;
  trace.op = wire::OpName(signature.op);
  if (!status.ok()) trace.error = status.message();
  trace.process_set = operation.process_set;
  trace.tensors = static_cast<int32_t>(signature.tensors.size());
  trace.bytes = control::SignatureBytes(signature);
  trace.first_ready_ns = operation.first_ready_ns;
  trace.submitted_ns = operation.submitted_ns;
  trace.ended_ns = now_ns;
  return trace;
}

}  // namespace horocache::runtime
