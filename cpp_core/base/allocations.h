// Counts the heap allocations of this library's own code, in this process.
//
// Steady state allocates nothing, and tests check that by this number. The count costs nothing while that is so.
#pragma once

#include <cstdint>

namespace horocache {

// The number of allocations so far; 0 in builds with sanitizers, which have an allocator of their own.
uint64_t Allocations();
// True if this build counts allocations.
bool CountsAllocations();

// For tests of behaviour without memory: after `after` more allocations, the next `failures` fail. `failures` 0 ends
// it. Does nothing in builds that do not count.
void FailAllocations(int64_t after, int64_t failures);
// While a shield exists on a thread, the thread's allocations do not fail and do not count for `after`. A shield with
// false restores that within another shield.
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
