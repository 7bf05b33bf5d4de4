// Converts float16 and bfloat16 to float32 and back, for a caller that folds in several steps but rounds once, as one
// fold does.
//
// The bits are those of the fold kernels: Widen is exact, Narrow rounds to nearest even. NaNs must be the canonical
// one. Thread-safe: no state.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace horocache::data {

// `dtype` is kFloat16 or kBfloat16; `to` and `from` do not overlap.
void Widen(DType dtype, const std::byte* from, std::byte* to, int64_t count);
void Narrow(DType dtype, const std::byte* from, std::byte* to, int64_t count);

}  // namespace horocache::data
