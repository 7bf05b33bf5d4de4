// Zero-fills the elements of a result that no received part covers, a piece at a time.
//
// Threads: those of the operation it belongs to. Ownership: none; the result must outlive it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "data/row_layout.h"

namespace horocache::data {

class ZeroFiller {
 public:
  ZeroFiller() = default;
  ZeroFiller(const ReceivePlan& plan, std::byte* result, int64_t element_bytes)
      : gaps_(result == nullptr ? std::vector<RowPart>() : GapsOf(plan)),
        result_(result),
        element_bytes_(element_bytes) {}

  bool done() const { return next_ == gaps_.size(); }

  // Zeroes at most `most` elements of one uncovered range; returns the number of bytes zeroed. Requires !done().
  int64_t Fill(int64_t most) {
    RowPart& gap = gaps_[next_];
    const int64_t count = std::min(gap.count, most);
    std::memset(result_ + gap.first * element_bytes_, 0, static_cast<size_t>(count * element_bytes_));
    gap.first += count;
    gap.count -= count;
    if (gap.count == 0) ++next_;
    return count * element_bytes_;
  }

 private:
  std::vector<RowPart> gaps_;
  size_t next_ = 0;
  std::byte* result_ = nullptr;
  int64_t element_bytes_ = 1;
};

}  // namespace horocache::data
