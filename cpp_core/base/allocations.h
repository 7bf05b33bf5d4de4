// How often this library's own code has asked for memory from the heap, in this process.
//
// Steady state allocates nothing, and tests hold it to that by this number. It costs nothing as long as that is so.
#pragma once

#include <cstdint>

namespace horocache {

// 0 in builds with sanitizers, which have an allocator of their own.
uint64_t Allocations();
// Whether anything is counted.
bool CountsAllocations();

// For tests of what happens when there is no memory: after `after` more requests, the next `failures` fail. 0 ends it.
// Does nothing in builds that count nothing.
void FailAllocations(int64_t after, int64_t failures);
// While there is one on a thread, its requests are neither failed nor counted for that; with false they are again.
class AllocationShield {
 public:
  explicit AllocationShield(bool shields = true);
  ~AllocationShield();
  AllocationShield(const AllocationShield&) = delete;
  AllocationShield& operator=(const AllocationShield&) = delete;

 private:
  const bool before_;
};

}  // namespace horocache
