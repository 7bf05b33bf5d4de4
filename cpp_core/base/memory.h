// How processors, the kernel and malloc treat memory: cache lines, huge pages, reservations, freed memory.
#pragma once

#include <cstddef>
#include <type_traits>

namespace horocache {

// Bytes of a cache line, on x86-64 and on most of aarch64. Data that two threads write lies on different lines.
constexpr int kCacheLine = 64;
// Bytes of a page, on x86-64 and on most of aarch64. Memory that two backends use begins on different pages.
constexpr int kPage = 4096;

// The next multiple of `unit`.
template <typename T>
constexpr T RoundUp(T value, std::type_identity_t<T> unit) {
  return (value + unit - 1) / unit * unit;
}

// Asks for huge pages under memory that is about to be written for the first time. Page faults take most of the time of
// writing fresh memory; with huge pages there is one for 2 MiB instead of 512. Does nothing for less than 4 MiB or more
// than 128 MiB, or if the kernel has no huge pages.
void PreferHugePages(void* memory, size_t bytes);

// Maps `bytes` of the memory file `fd`, most of which usually stay unused (a reservation). The mapping is not filled by
// accident: core dumps leave it out (reading a hole makes a page), mlockall(MCL_FUTURE) does not fill it, and a child
// of fork() does not have it. Null, with errno set, on failure.
void* MapReservation(int fd, size_t offset, size_t bytes);

// Makes malloc keep freed memory for this process, instead of giving it back to the kernel when the end of the heap is
// free: memory that is allocated anew in each step of a loop then has its pages already. Takes effect once per process,
// and permanently. Returns false and changes nothing if the C library is not glibc, or if the environment tells glibc
// what to keep. A malloc other than glibc's is not affected.
bool KeepFreedMemory();

}  // namespace horocache
