#include "base/memory.h"

#include <malloc.h>
#include <sys/mman.h>

#include <cstdint>

#include "base/environment.h"

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

bool KeepFreedMemory() {
#ifdef __GLIBC__
  // Each of the two ends glibc's own adjustment of both. 32 MiB is the largest threshold that it takes, and where its
  // adjustment would end; larger blocks have mappings of their own, which go when they are freed.
  constexpr int kLargestThreshold = 32 << 20;
  constexpr int kNeverTrim = -1;
  static const bool keeps = !EnvironmentTunesMalloc() && mallopt(M_MMAP_THRESHOLD, kLargestThreshold) == 1 &&
                            mallopt(M_TRIM_THRESHOLD, kNeverTrim) == 1;
  return keeps;
#else
  return false;
#endif
}

}  // namespace horocache
