#include "program/scratch.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/memory.h"

namespace horocache::program {

Status WorkBuffer::Reserve(int64_t bytes) {
  if (bytes <= capacity_) return Status::Ok();
  // Grows by at least one half, so that a job whose sizes creep up does not reallocate in every step.
  const int64_t wanted = RoundUp(std::max(bytes, capacity_ + capacity_ / 2), kPage);
  memory_.reset();
  capacity_ = 0;
  if (source_) memory_ = source_(wanted);
  if (memory_ == nullptr) {
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, static_cast<size_t>(wanted))), std::free);
  }
  if (memory_ == nullptr) {
    return {StatusCode::kOutOfMemory, "no memory for " + std::to_string(wanted) + " bytes that a program works on"};
  }
  capacity_ = wanted;
  return Status::Ok();
}

}  // namespace horocache::program
