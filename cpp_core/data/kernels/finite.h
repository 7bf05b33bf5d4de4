// Finds NaNs and infinities, which spoil the result of a reduction.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace horocache::data {

struct NonFinite {
  int64_t count = 0;   // elements that are NaN or infinite; for complex ones, in either part
  int64_t first = -1;  // index of the first such element
};

// Checks `count` elements. Integers and bool have no such values.
NonFinite FindNonFinite(DType dtype, const std::byte* data, int64_t count);

}  // namespace horocache::data
