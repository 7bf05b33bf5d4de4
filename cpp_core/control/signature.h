// Properties that follow from a signature alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "wire/message.h"

namespace horocache::control {

inline bool IsGroup(const wire::Signature& signature) { return signature.tensors.size() > 1; }

// True if the op may run fused with others of its kind: all their tensors travel in one collective, as segments of one
// element type.
inline bool Fuses(wire::Op op) { return wire::TraitsOf(op).fuses; }

// True if the op's responses are cached: all but those of ops that happen once, or without a round.
inline bool IsCacheable(wire::Op op) {
  return op != wire::Op::kJoin && op != wire::Op::kRegister && !wire::IsPointToPoint(op);
}

// Calls f(key) for every name by which the request may collide with another one: its own and its tensors' names.
template <typename F>
void ForEachKey(const wire::Signature& signature, F&& f) {
  f(signature.name);
  for (const wire::TensorMeta& tensor : signature.tensors) {
    if (tensor.name != signature.name) f(tensor.name);
  }
}

// The bytes of a tensor; a dimension that differs by rank counts as 1. At most 2^62, for any shape.
int64_t TensorBytes(const wire::TensorMeta& tensor);
int64_t SignatureBytes(const wire::Signature& signature);

uint64_t HashOf(const wire::Signature& signature);

// The operation in messages: "allreduce 'grad.3'".
std::string Describe(const wire::Signature& signature);

// kInvalidArgument if no rank could ever run this: names too long, negative shapes, a root outside the process set, ...
Status Validate(const wire::Signature& signature, int world);

}  // namespace horocache::control
