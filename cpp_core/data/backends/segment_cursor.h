// Walks over the elements of a list of segments as if they were one array; made for going forwards.
//
// Ownership: none; the segments outlive it. Role: that of the operation it belongs to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/backend.h"

namespace horocache::data {

class SegmentCursor {
 public:
  SegmentCursor() = default;
  SegmentCursor(const std::vector<Segment>* segments, size_t element_bytes)
      : segments_(segments), element_bytes_(static_cast<int64_t>(element_bytes)) {}

  // Moves to `element` of the whole.
  void Seek(int64_t element) {
    if (element < start_) {
      index_ = 0;
      start_ = 0;
    }
    while (index_ < segments_->size() && element >= start_ + (*segments_)[index_].count) {
      start_ += (*segments_)[index_].count;
      ++index_;
    }
    offset_ = element - start_;
  }

  // How many elements lie in one piece from here on, at most `limit`. There is an element here.
  int64_t Run(int64_t limit) const { return std::min(limit, (*segments_)[index_].count - offset_); }

  // Null where this rank has no such tensor.
  const std::byte* input() const { return At((*segments_)[index_].input); }
  std::byte* output() const { return At((*segments_)[index_].output); }

 private:
  template <typename Byte>
  Byte* At(Byte* base) const {
    return base == nullptr ? nullptr : base + offset_ * element_bytes_;
  }

  const std::vector<Segment>* segments_ = nullptr;
  int64_t element_bytes_ = 1;
  size_t index_ = 0;
  int64_t start_ = 0;   // first element of segment index_
  int64_t offset_ = 0;  // within it
};

}  // namespace horocache::data
