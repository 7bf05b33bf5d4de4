// The flat array that the small tensors of an operation are packed into: see Note [Packing on the device] in fused.cc.
#pragma once

#include <cstdint>

namespace horocache::data {

// The part of the array that a tensor belongs to. The first part is in front; the last are tensors that are not packed.
enum class FlatPart : uint8_t { kVectors, kOthers, kNone };

constexpr FlatPart FlatPartOf(int64_t bytes) {
  // At the speed of an H100's memory, two copies of a tensor of this size take as long as a call of NCCL: see
  // "nccl-flat" in benchmarks/gpu/README.md.
  constexpr int64_t kPackedBytes = 4 << 20;
  constexpr int64_t kVectorBytes = 16;  // in which the kernels copy what is aligned
  if (bytes > kPackedBytes) return FlatPart::kNone;
  return bytes % kVectorBytes == 0 ? FlatPart::kVectors : FlatPart::kOthers;
}

}  // namespace horocache::data
