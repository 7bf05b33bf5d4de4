// Memory that consecutive operations reuse. The other ranks of the host can read it if shared memory is available.
//
// Threads: the owner's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"

namespace horocache::program {

// Allocates memory that the ranks of the host share; returns null if there is none. The function may be empty.
using SharedMemorySource = std::function<std::shared_ptr<std::byte>(int64_t bytes)>;

class WorkBuffer {
 public:
  explicit WorkBuffer(const SharedMemorySource* source) : source_(*source) {}

  // Makes room for `bytes` bytes. If the buffer has to grow, its contents are lost.
  Status Reserve(int64_t bytes);
  std::byte* data() const { return memory_.get(); }

 private:
  const SharedMemorySource& source_;
  std::shared_ptr<std::byte> memory_;
  int64_t capacity_ = 0;
};

}  // namespace horocache::program
