// One buffer for backends that cannot work on a list of segments: the segments' elements one after the other.
//
// Grows on demand and stays, so that a steady state allocates nothing. Role: that of its owner.
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
  // Room for `bytes`, aligned to a page; what was in the buffer is lost if it has to grow.
  Status Reserve(int64_t bytes);
  std::byte* data() const { return memory_.get(); }
  int64_t capacity() const { return capacity_; }

  // From the segments' inputs into the buffer. Segments without one leave a gap.
  void Pack(const std::vector<Segment>& segments, int64_t element_bytes) const;
  // From the buffer into the segments' outputs, where they have one.
  void Unpack(const std::vector<Segment>& segments, int64_t element_bytes) const;

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  int64_t capacity_ = 0;
};

}  // namespace horocache::data
