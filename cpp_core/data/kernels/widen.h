// float16 and bfloat16 as float32 and back: for who folds in several steps and rounds once, as one fold does.
//
// The same bits as from the fold kernels: exact one way, to nearest even the other. NaNs are to be the canonical one.
// Thread-safe: no state.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace horocache::data {

// `dtype` is kFloat16 or kBfloat16; `to` and `from` do not overlap.
void Widen(DType dtype, const std::byte* from, std::byte* to, int64_t count);
void Narrow(DType dtype, const std::byte* from, std::byte* to, int64_t count);

}  // namespace horocache::data
