// One buffer for backends that cannot work on a list of segments: it holds the segments' elements one after the other.
//
// It grows on demand and never shrinks, so that a steady state allocates nothing. Threads: those of its owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/status.h"
#include "data/backend.h"

namespace horocache::data {

class FusionBuffer {
 public:
  // Makes room for `bytes`, aligned to a page. The contents are lost if the buffer has to grow.
  Status Reserve(int64_t bytes);
  std::byte* data() const { return memory_.get(); }
  int64_t capacity() const { return capacity_; }

  // Copies the segments' inputs into the buffer. The place of a segment without an input is left as it is.
  void Pack(const std::vector<Segment>& segments, int64_t element_bytes) const;
  // Copies the buffer into the segments' outputs, and skips segments without an output.
  void Unpack(const std::vector<Segment>& segments, int64_t element_bytes) const;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  int64_t capacity_ = 0;
};

}  // namespace horocache::data
