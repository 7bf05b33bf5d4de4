#include "data/fusion_buffer.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/memory.h"

namespace horocache::data {

Status FusionBuffer::Reserve(int64_t bytes) {
  if (bytes <= capacity_) return Status::Ok();
  // Grows by at least half: a job whose sizes increase slowly does not reallocate at every step.
  const int64_t wanted = RoundUp(std::max(bytes, capacity_ + capacity_ / 2), kPage);
  memory_.reset();
  capacity_ = 0;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, static_cast<size_t>(wanted))));
  if (memory_ == nullptr) {
    return Status(StatusCode::kOutOfMemory,
                  "no memory for a fusion buffer of " + std::to_string(wanted) + " bytes; lower fusion_threshold");
  }
  capacity_ = wanted;
  return Status::Ok();
}

void FusionBuffer::Pack(const std::vector<Segment>& segments, int64_t element_bytes) const {
  std::byte* at = memory_.get();
  for (const Segment& segment : segments) {
    const int64_t bytes = segment.count * element_bytes;
    if (segment.input != nullptr && bytes > 0) std::memcpy(at, segment.input, static_cast<size_t>(bytes));
    at += bytes;
  }
}

void FusionBuffer::Unpack(const std::vector<Segment>& segments, int64_t element_bytes) const {
  const std::byte* at = memory_.get();
  for (const Segment& segment : segments) {
    const int64_t bytes = segment.count * element_bytes;
    if (segment.output != nullptr && bytes > 0) std::memcpy(segment.output, at, static_cast<size_t>(bytes));
    at += bytes;
  }
}

}  // namespace horocache::data
