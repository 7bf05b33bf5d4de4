// The identity element of a reduction: a rank without data contributes it where every rank must contribute something.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "wire/message.h"

namespace horocache::data {

// Stores `count` identity elements. For sums of floats it is minus zero: plus zero would turn a sum of minus zeros into
// plus zero. The fold must be defined (CheckFold).
void FillNeutralElement(DType dtype, wire::ReduceOp op, std::byte* out, int64_t count);

}  // namespace horocache::data
