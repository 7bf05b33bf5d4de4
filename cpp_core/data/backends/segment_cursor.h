// Walks over the elements of a list of segments as if they were one array. Going forwards is fast; going back starts
// again at the first segment.
//
// Ownership: none; the segments must outlive it. Threads: those of the operation it belongs to.
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

  // Moves to `element`, counted through all segments.
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

  // Number of contiguous elements from the cursor on, at most `limit`. Requires that the cursor is not at the end.
  int64_t Run(int64_t limit) const { return std::min(limit, (*segments_)[index_].count - offset_); }

  // For many small segments: Gather copies the inputs of the next `count` elements to `to`; Scatter copies `count`
  // elements from `from` to the outputs and skips segments without one. Both return the number of pieces and leave the
  // cursor where it is.
  int64_t Gather(std::byte* to, int64_t count) const;
  int64_t Scatter(const std::byte* from, int64_t count) const;

  // The addresses at the cursor; null if the segment has no input or no output on this rank.
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

// memcpy with a constant size needs no call. For tiny pieces the call would cost more than the bytes.
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
