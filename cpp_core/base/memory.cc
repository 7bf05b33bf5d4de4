#include "base/memory.h"

#include <sys/mman.h>

#include <cstdint>

namespace horocache {

void PreferHugePages(void* memory, size_t bytes) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  constexpr size_t kWorthACall = size_t{4} << 20;
  // Measured: 64 MiB became 3 times as fast, 256 MiB on a virtual machine half as fast, where so many huge pages were
  // memory that the host had not backed yet.
  constexpr size_t kHardToFind = size_t{128} << 20;
  if (bytes < kWorthACall || bytes > kHardToFind) return;
  const auto begin = (reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) & ~(kHugePage - 1);
  const auto end = (reinterpret_cast<uintptr_t>(memory) + bytes) & ~(kHugePage - 1);
  // A refusal (a kernel without them) leaves small pages, which do as well.
  static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE));
}

}  // namespace horocache
