// What the kernel should know about large memory.
#pragma once

#include <cstddef>

namespace horocache {

// Asks for huge pages under memory that is about to be written for the first time: one fault for 2 MiB instead of 512,
// which is most of the time of writing fresh memory. Does nothing for less than 4 MiB or more than 128 MiB, or
// where the kernel has none.
void PreferHugePages(void* memory, size_t bytes);

}  // namespace horocache
