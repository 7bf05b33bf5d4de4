// Walks over the elements of a list of segments as if they were one array; made for going forwards.
//
// Ownership: none; the segments outlive it. Role: that of the operation it belongs to.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

  // Copies `count` elements from here on, whatever pieces they lie in, to one place; and from one place to the outputs
  // that there are. For many small pieces, whose number they return. The cursor stays where it is.
  int64_t Gather(std::byte* to, int64_t count) const;
  int64_t Scatter(const std::byte* from, int64_t count) const;

  // Null where this rank has no such tensor.
  const std::byte* input() const { return At((*segments_)[index_].input); }
  std::byte* output() const { return At((*segments_)[index_].output); }

 private:
  template <typename F>
  int64_t ForEachPiece(int64_t count, F&& f) const;

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

template <typename F>
int64_t SegmentCursor::ForEachPiece(int64_t count, F&& f) const {
  int64_t offset = offset_, pieces = 0;
  for (const Segment* segment = segments_->data() + index_; count > 0; ++segment) {
    const int64_t run = std::min(count, segment->count - offset);
    if (run > 0) f(*segment, offset * element_bytes_, static_cast<size_t>(run * element_bytes_));
    count -= run;
    offset = 0;
    ++pieces;
  }
  return pieces;
}

// What is small costs a call of memcpy more than its bytes.
inline void CopyPiece(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 4) {
    std::memcpy(to, from, 4);
  } else if (bytes == 8) {
    std::memcpy(to, from, 8);
  } else {
    std::memcpy(to, from, bytes);
  }
}

inline int64_t SegmentCursor::Gather(std::byte* to, int64_t count) const {
  return ForEachPiece(count, [&to](const Segment& segment, int64_t offset, size_t bytes) {
    CopyPiece(to, segment.input + offset, bytes);
    to += bytes;
  });
}

inline int64_t SegmentCursor::Scatter(const std::byte* from, int64_t count) const {
  return ForEachPiece(count, [&from](const Segment& segment, int64_t offset, size_t bytes) {
    if (segment.output != nullptr) CopyPiece(segment.output + offset, from, bytes);
    from += bytes;
  });
}

}  // namespace horocache::data
