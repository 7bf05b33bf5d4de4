// The value that changes nothing when it takes part in a reduction: what a rank without data contributes where it has
// to contribute something.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "wire/message.h"

namespace horocache::data {

// Minus zero for sums of floats: plus zero would turn a sum of minus zeros into plus zero. The fold must be defined
// (CheckFold).
void FillIdentity(DType dtype, wire::ReduceOp op, std::byte* out, int64_t count);

}  // namespace horocache::data
