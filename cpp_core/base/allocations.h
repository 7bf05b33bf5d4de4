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

}  // namespace horocache
