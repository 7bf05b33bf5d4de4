// Memory of operations that stays from one to the next, where the other ranks can read it if that is possible.
//
// Role: that of its owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"

namespace horocache::program {

// Memory that the ranks of the host share; null if there is none. May be empty.
using SharedMemorySource = std::function<std::shared_ptr<std::byte>(int64_t bytes)>;

class WorkBuffer {
 public:
  explicit WorkBuffer(const SharedMemorySource* source) : source_(*source) {}

  // Room for `bytes`; what was in the buffer is lost if it has to grow.
  Status Reserve(int64_t bytes);
  std::byte* data() const { return memory_.get(); }

 private:
  const SharedMemorySource& source_;
  std::shared_ptr<std::byte> memory_;
  int64_t capacity_ = 0;
};

}  // namespace horocache::program
