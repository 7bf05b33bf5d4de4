// What processors and the kernel do with memory.
#pragma once

#include <cstddef>
#include <type_traits>

namespace horocache {

// Of x86-64 and of most of aarch64. What two threads write stands on different ones.
constexpr int kCacheLine = 64;

// The next multiple of `unit`.
template <typename T>
constexpr T RoundUp(T value, std::type_identity_t<T> unit) {
  return (value + unit - 1) / unit * unit;
}

// Asks for huge pages under memory that is about to be written for the first time: one fault for 2 MiB instead of 512,
// which is most of the time of writing fresh memory. Does nothing for less than 4 MiB or more than 128 MiB, or
// where the kernel has none.
void PreferHugePages(void* memory, size_t bytes);

// Maps `bytes` of the memory file `fd` that most of the time are a reservation. Nothing takes it at its word: core
// dumps leave the mapping out (reading a hole makes a page), mlockall(MCL_FUTURE) does not fill it, and a child of fork
// does not have it. Null, with errno, where that cannot be done.
void* MapReservation(int fd, size_t offset, size_t bytes);

// Has malloc keep for this process what is freed, instead of giving it back to the kernel when the end of the heap is
// free: memory that is allocated anew in each step of a loop then has its pages already. Once per process, and for
// good. False, and nothing is changed, where the C library is not glibc or the environment tells it what to keep;
// another malloc than glibc's does not notice.
bool KeepFreedMemory();

}  // namespace horocache
