// Implements hc.h: memory that the ranks of a host share.
#include <memory>
#include <new>
#include <utility>

#include "capi/hc.h"
#include "capi/wrap.h"
#include "runtime/runtime.h"

// The memory lives as long as its last shared pointer, also after hc_free.
struct hc_memory {
  std::shared_ptr<std::byte> bytes;
};

hc_memory* hc_allocate(hc_runtime* runtime, int64_t bytes, void** data) {
  auto memory = bytes < 0 ? nullptr : runtime->runtime->Allocate(bytes);
  *data = memory.get();
  return memory == nullptr ? nullptr : new (std::nothrow) hc_memory{std::move(memory)};
}

void hc_free_memory(hc_memory* memory) { delete memory; }

int hc_is_shared(hc_runtime* runtime, const void* data) {
  return runtime->runtime->IsShared(static_cast<const std::byte*>(data)) ? 1 : 0;
}
