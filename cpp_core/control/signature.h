// What can be computed from a signature alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "wire/message.h"

namespace horocache::control {

inline bool IsGroup(const wire::Signature& signature) { return signature.tensors.size() > 1; }

// Operations that may run fused with others of their kind: all their tensors travel in one collective, as segments of
// one element type.
inline bool Fuses(wire::Op op) {
  return op == wire::Op::kAllreduce || op == wire::Op::kBroadcast || op == wire::Op::kReduce;
}

// Operations whose responses are cached: all but those that happen once, or without a round.
inline bool IsCacheable(wire::Op op) {
  return op != wire::Op::kJoin && op != wire::Op::kRegister && !wire::IsPointToPoint(op);
}

// Calls f(key) for every name under which the request may meet another: its own and its tensors'.
template <typename F>
void ForEachKey(const wire::Signature& signature, F&& f) {
  f(signature.name);
  for (const wire::TensorMeta& tensor : signature.tensors) {
    if (tensor.name != signature.name) f(tensor.name);
  }
}

// Bytes of a tensor, a dimension that differs by rank counted as 1; at most 2^62, whatever the shape.
int64_t TensorBytes(const wire::TensorMeta& tensor);
int64_t SignatureBytes(const wire::Signature& signature);

uint64_t HashOf(const wire::Signature& signature);

// For messages: "allreduce 'grad.3'".
std::string Describe(const wire::Signature& signature);

// kInvalidArgument if no rank could ever run this: names too long, shapes negative, a root outside the process set, ...
Status Validate(const wire::Signature& signature, int world);

}  // namespace horocache::control
