// Looks for values that no reduction survives.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace horocache::data {

struct NonFinite {
  int64_t count = 0;   // elements that are NaN or infinite; complex ones if either part is
  int64_t first = -1;  // the place of the first
};

// Of `count` elements. Types without such values have none.
NonFinite FindNonFinite(DType dtype, const std::byte* data, int64_t count);

}  // namespace horocache::data
