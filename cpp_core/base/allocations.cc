#include "base/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

#include "base/sanitized.h"

namespace horocache {
namespace {

// Constant-initialized, so that allocations before main() count, too.
std::atomic<uint64_t> allocations{0};
std::atomic<bool> failing{false};
std::atomic<int64_t> until_failure{0}, failures_left{0};
thread_local bool shielded = false;

}  // namespace

uint64_t Allocations() { return allocations.load(std::memory_order_relaxed); }
bool CountsAllocations() { return !kSanitized; }

void FailAllocations(int64_t after, int64_t failures) {
  failing.store(false);
  until_failure.store(after);
  failures_left.store(failures);
  failing.store(failures > 0);
}

AllocationShield::AllocationShield(bool shields) : before_(shielded) { shielded = shields; }
AllocationShield::~AllocationShield() { shielded = before_; }

}  // namespace horocache

#if !HC_SANITIZED
// The library's own operators. Their symbols are hidden, so that no other library takes memory from here, and the
// memory is malloc's.

namespace {

bool Fails() {
  using namespace horocache;
  return !shielded && until_failure.fetch_sub(1) <= 0 && failures_left.fetch_sub(1) > 0;
}

void* Count(void* memory) {
  horocache::allocations.fetch_add(1, std::memory_order_relaxed);
  if (horocache::failing.load(std::memory_order_relaxed) && Fails()) {
    std::free(memory);
    memory = nullptr;
  }
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Not inlined: the compiler would see memory of malloc freed by delete, and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) { return Count(std::malloc(bytes == 0 ? 1 : bytes)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  return Count(std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit));
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#endif
