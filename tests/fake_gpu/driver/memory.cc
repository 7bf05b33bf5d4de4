// Memory of devices, registered memory of the host, and what a pointer is.
//
// A device's memory is one memfd, mapped twice: callers get addresses of a mapping without access, and the fake uses
// the other one. A load or store of the host at an address of the device therefore ends the process, as it would with
// a real GPU; a handler of SIGSEGV says which allocation it was.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "driver/driver.h"
#include "driver/options.h"

namespace fake_gpu {
namespace {

constexpr size_t kAlignment = 512;
constexpr size_t kPage = 4096;

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

Address Begin(const Device& device) { return reinterpret_cast<Address>(device.addresses); }

bool Contains(const Device& device, Address address) {
  return device.addresses != nullptr && address >= Begin(device) && address < Begin(device) + options().memory;
}

// The registered or pinned range that has the address; null: none.
const std::pair<const Address, HostRange>* FindHostRange(Address address) {
  auto next = state().host.upper_bound(address);
  if (next == state().host.begin()) return nullptr;
  --next;
  return address < next->first + next->second.size ? &*next : nullptr;
}

bool OverlapsHostRange(Address address, size_t size) {
  const auto next = state().host.lower_bound(address);
  return FindHostRange(address) != nullptr || (next != state().host.end() && next->first < address + size);
}

enum class Mapping { kNone, kReadOnly, kWritable };

// How the host's memory is mapped there; *shared: true if another mapping of it shows the same bytes.
Mapping MappingOf(Address address, size_t size, bool* shared) {
  std::ifstream maps("/proc/self/maps");
  Mapping mapping = Mapping::kNone;
  *shared = true;
  Address reached = address;
  for (std::string line; std::getline(maps, line) && reached < address + size;) {
    uint64_t begin = 0;
    uint64_t end = 0;
    char access[5] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, access) != 3 || end <= reached) continue;
    if (begin > reached || access[0] != 'r') return Mapping::kNone;
    if (access[3] != 's') *shared = false;
    if (access[1] != 'w') {
      mapping = Mapping::kReadOnly;
    } else if (mapping == Mapping::kNone) {
      mapping = Mapping::kWritable;
    }
    reached = end;
  }
  return reached < address + size ? Mapping::kNone : mapping;
}

// Maps shared memory once more.
void MapAgain(Address address, HostRange* range) {
  const Address first = address / kPage * kPage;
  const size_t bytes = RoundUp(address + range->size - first, kPage);
  void* const again = mremap(reinterpret_cast<void*>(first), 0, bytes, MREMAP_MAYMOVE);
  if (again == MAP_FAILED) return;
  range->alias = static_cast<std::byte*>(again) + (address - first);
  range->alias_bytes = bytes;
}

// Gives up what the fake has of a range.
void Release(Address address, const HostRange& range) {
  if (range.allocated) munmap(reinterpret_cast<void*>(address), range.size);
  if (range.alias == nullptr) return;
  const auto alias = reinterpret_cast<Address>(range.alias);
  munmap(reinterpret_cast<void*>(alias / kPage * kPage), range.alias_bytes);
}

struct sigaction previous_action;

// No lock and no allocation here: the program is at an arbitrary place.
void OnSegmentationFault(int number, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<Address>(info->si_addr);
  for (const auto& device : state().devices) {
    if (!Contains(*device, address)) continue;
    char text[200] = "";
    const int length = std::snprintf(text, sizeof text,
                                     "fake GPU: the host used memory of device %d, offset %llu, by a load or store\n",
                                     device->number, static_cast<unsigned long long>(address - Begin(*device)));
    if (write(STDERR_FILENO, text, static_cast<size_t>(length)) < 0) break;
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0 && previous_action.sa_sigaction != nullptr) {
    previous_action.sa_sigaction(number, info, context);
    return;
  }
  sigaction(SIGSEGV, &previous_action, nullptr);  // the instruction is run again, and ends the process
}

}  // namespace

void CatchHostAccess() {
  struct sigaction action = {};
  action.sa_sigaction = &OnSegmentationFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous_action);
}

bool MapMemory(Device* device) {
  if (device->addresses != nullptr) return true;
  device->file = memfd_create("fake GPU memory", MFD_CLOEXEC);
  if (device->file < 0 || ftruncate(device->file, static_cast<off_t>(options().memory)) != 0) return false;
  const int flags = MAP_SHARED | MAP_NORESERVE;
  void* const addresses = mmap(nullptr, options().memory, PROT_NONE, flags, device->file, 0);
  void* const memory = mmap(nullptr, options().memory, PROT_READ | PROT_WRITE, flags, device->file, 0);
  if (addresses == MAP_FAILED || memory == MAP_FAILED) return false;
  device->addresses = static_cast<std::byte*>(addresses);
  device->memory = static_cast<std::byte*>(memory);
  return true;
}

// The addresses stay reserved, so that a use of freed memory is found.
void ReleaseMemory(Device* device) {
  device->allocations.clear();
  device->allocated = 0;
  if (device->file >= 0) {
    fallocate(device->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(options().memory));
  }
  std::erase_if(state().host, [device](const auto& range) {
    if (range.second.device != device) return false;
    Release(range.first, range.second);
    return true;
  });
}

Device* OwnerOf(const Lock&, Address address) {
  for (const auto& device : state().devices) {
    if (Contains(*device, address)) return device.get();
  }
  return nullptr;
}

std::optional<Device::Allocation> FindAllocation(const Lock& lock, Address address, size_t bytes) {
  Device* const device = OwnerOf(lock, address);
  if (device == nullptr) return std::nullopt;
  auto next = device->allocations.upper_bound(address);
  if (next == device->allocations.begin()) return std::nullopt;
  --next;
  if (address + bytes > next->first + next->second.size || address >= next->first + next->second.size)
    return std::nullopt;
  return next->second;
}

bool IsAllocated(const Lock& lock, Address address, size_t bytes) {
  const Device* const device = OwnerOf(lock, address);
  if (device == nullptr) return false;
  auto next = device->allocations.upper_bound(address);
  if (next == device->allocations.begin()) return false;
  Address end = address;
  for (--next; next != device->allocations.end() && next->first <= end; ++next) {
    end = next->first + next->second.size;
    if (end <= address) return false;
    if (end >= address + bytes) return true;
  }
  return false;
}

std::byte* Reach(const Lock& lock, Address address, size_t bytes) {
  Device* const device = OwnerOf(lock, address);
  if (device == nullptr) {
    const auto* const range = FindHostRange(address);
    const bool mapped = range != nullptr && range->second.alias != nullptr;
    return mapped ? range->second.alias + (address - range->first) : reinterpret_cast<std::byte*>(address);
  }
  if (!IsAllocated(lock, address, bytes)) return nullptr;
  return device->memory + (address - Begin(*device));
}

bool IsPinned(const Lock&, Address address, size_t bytes) {
  const auto* const range = FindHostRange(address);
  return range != nullptr && address + bytes <= range->first + range->second.size;
}

Code Allocate(const Lock&, Device* device, size_t bytes, bool exportable, Address* address) {
  if (bytes == 0) return k_INVALID_VALUE;
  const size_t rounded = RoundUp(bytes, exportable ? size_t{2} << 20 : kAlignment);
  if (rounded < bytes || device->allocated + rounded > options().memory) return k_OUT_OF_MEMORY;
  Address place = Begin(*device) + kAlignment;
  for (const auto& [begin, allocation] : device->allocations) {
    if (begin >= place + rounded) break;
    place = RoundUp(begin + allocation.size, exportable ? 4096 : kAlignment);
  }
  if (place + rounded > Begin(*device) + options().memory) return k_OUT_OF_MEMORY;
  device->allocations[place] = {exportable ? rounded : bytes, exportable};
  device->allocated += rounded;
  *address = place;
  return k_SUCCESS;
}

Code Free(const Lock& lock, Address address) {
  Device* const device = OwnerOf(lock, address);
  if (device == nullptr) return k_INVALID_VALUE;
  const auto found = device->allocations.find(address);
  if (found == device->allocations.end()) return k_INVALID_VALUE;
  // A later use must not find the old bytes.
  const Device::Allocation allocation = found->second;
  device->allocated -= RoundUp(allocation.size, allocation.exportable ? size_t{2} << 20 : kAlignment);
  std::memset(device->memory + (address - Begin(*device)), 0xDB, std::min(allocation.size, size_t{4096}));
  const Address first = RoundUp(address - Begin(*device), 4096);
  const Address last = (address - Begin(*device) + allocation.size) / 4096 * 4096;
  if (last > first) {
    fallocate(device->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
              static_cast<off_t>(last - first));
  }
  device->allocations.erase(found);
  return k_SUCCESS;
}

// ---- memory of devices

FAKE_GPU_API Code cuMemGetInfo_v2(size_t* available, size_t* total) {
  Device* device = nullptr;
  if (const Code refused = Enter(__func__)) return refused;
  if (const Code unusable = UseCurrent(&device)) return unusable;
  const Lock lock(state().mutex);
  *available = options().memory - device->allocated;
  *total = options().memory;
  return k_SUCCESS;
}

FAKE_GPU_API Code cuMemAlloc_v2(Address* address, size_t bytes) {
  Device* device = nullptr;
  if (const Code refused = Enter(__func__, kUnsafe)) return refused;
  if (const Code unusable = UseCurrent(&device)) return unusable;
  const std::lock_guard context(device->context_lock);
  const Lock lock(state().mutex);
  return Allocate(lock, device, bytes, false, address);
}

FAKE_GPU_API Code cuMemFree_v2(Address address) {
  if (const Code refused = Enter(__func__, kUnsafe)) return refused;
  if (address == 0) return k_SUCCESS;
  Lock lock(state().mutex);
  Device* const device = OwnerOf(lock, address);
  if (device == nullptr) return k_INVALID_VALUE;
  if (const Code unusable = ContextError(*device)) return unusable;
  lock.unlock();
  const std::lock_guard context(device->context_lock);
  lock.lock();
  WaitForDevice(&lock, device);
  return Free(lock, address);
}

// ---- memory of the host

FAKE_GPU_API Code cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  Device* device = nullptr;
  if (const Code refused = Enter(__func__, kUnsafe)) return refused;
  if (const Code unusable = UseCurrent(&device)) return unusable;
  if (bytes == 0) return k_INVALID_VALUE;
  const size_t size = RoundUp(bytes, 4096);
  void* const made = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return k_OUT_OF_MEMORY;
  const Lock lock(state().mutex);
  state().host[reinterpret_cast<Address>(made)] = {size, flags, true, device};
  *pointer = made;
  return k_SUCCESS;
}

FAKE_GPU_API Code cuMemFreeHost(void* pointer) {
  if (const Code refused = Enter(__func__, kUnsafe)) return refused;
  Lock lock(state().mutex);
  const auto found = state().host.find(reinterpret_cast<Address>(pointer));
  if (found == state().host.end() || !found->second.allocated) return k_INVALID_VALUE;
  if (const Code unusable = ContextError(*found->second.device)) return unusable;
  WaitForDevice(&lock, found->second.device);
  Release(found->first, found->second);
  state().host.erase(found);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  Device* device = nullptr;
  if (const Code refused = Enter(__func__, kUnsafe)) return refused;
  if (const Code unusable = UseCurrent(&device)) return unusable;
  const auto address = reinterpret_cast<Address>(pointer);
  if (pointer == nullptr || bytes == 0 || (flags & ~(kPortable | kDeviceMap | kIoMemory | kReadOnly)) != 0)
    return k_INVALID_VALUE;
  bool shared = false;
  const Mapping mapping = MappingOf(address, bytes, &shared);
  if (mapping == Mapping::kNone || (mapping == Mapping::kReadOnly && (flags & kReadOnly) == 0)) return k_INVALID_VALUE;
  const Lock lock(state().mutex);
  if (OverlapsHostRange(address, bytes)) return k_HOST_MEMORY_ALREADY_REGISTERED;
  HostRange& range = state().host[address];
  range = {bytes, flags, false, device};
  if (shared) MapAgain(address, &range);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuMemHostUnregister(void* pointer) {
  if (const Code refused = Enter(__func__, kUnsafe)) return refused;
  const auto address = reinterpret_cast<Address>(pointer);
  Lock lock(state().mutex);
  const auto found = state().host.find(address);
  if (found == state().host.end() || found->second.allocated)
    return FindHostRange(address) != nullptr ? k_INVALID_VALUE : k_HOST_MEMORY_NOT_REGISTERED;
  if (const Code unusable = ContextError(*found->second.device)) return unusable;
  WaitForDevice(&lock, found->second.device);
  Release(found->first, found->second);
  state().host.erase(found);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuMemHostGetDevicePointer_v2(Address* address, void* pointer, unsigned) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  if (FindHostRange(reinterpret_cast<Address>(pointer)) == nullptr) return k_INVALID_VALUE;
  *address = reinterpret_cast<Address>(pointer);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuMemHostGetFlags(unsigned* flags, void* pointer) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  const auto* const range = FindHostRange(reinterpret_cast<Address>(pointer));
  if (range == nullptr) return k_INVALID_VALUE;
  *flags = range->second.flags | kDeviceMap;
  return k_SUCCESS;
}

// ---- what a pointer is

namespace {

struct PointerFacts {
  Device* device = nullptr;  // null: neither a device's nor registered
  bool on_device = false;
  bool exportable = false;
  Address begin = 0;
  size_t size = 0;
};

PointerFacts FactsOf(const Lock& lock, Address address) {
  PointerFacts facts;
  if (Device* const device = OwnerOf(lock, address); device != nullptr) {
    if (!FindAllocation(lock, address, 1)) return facts;
    const auto found = std::prev(device->allocations.upper_bound(address));
    return {device, true, found->second.exportable, found->first, found->second.size};
  }
  if (const auto* const range = FindHostRange(address); range != nullptr)
    return {range->second.device, false, false, range->first, range->second.size};
  return facts;
}

// Reads an attribute's value and its size in bytes. False if the attribute does not exist.
bool AttributeOf(const PointerFacts& facts, Address address, int attribute, uint64_t* value, size_t* size) {
  const bool known = facts.device != nullptr;
  *size = 8;
  switch (attribute) {
    case kContext:
      *value = reinterpret_cast<uint64_t>(facts.device);
      return true;
    case kMemoryType:
      *size = 4;
      if (known) *value = facts.on_device ? kMemoryDevice : kMemoryHost;
      return true;
    case kDevicePointer:
      *value = known ? address : 0;
      return true;
    case kHostPointer:
      *value = facts.on_device ? 0 : address;
      return true;
    case kDeviceOrdinal:
      *size = 4;
      *value = known ? static_cast<uint64_t>(facts.device->number) : 0xFFFFFFFE;
      return true;
    case kLegacyIpcCapable:
      *size = 1;
      *value = facts.on_device && !facts.exportable ? 1 : 0;
      return true;
    case kRangeStart:
      *value = facts.begin;
      return true;
    case kRangeSize:
      *value = facts.size;
      return true;
    case kMapped:
      *size = 1;
      *value = known ? 1 : 0;
      return true;
    case kAllowedHandleTypes:
      *value = facts.exportable ? 1 : 0;
      return true;
    default:
      return false;
  }
}

}  // namespace

FAKE_GPU_API Code cuPointerGetAttribute(void* data, int attribute, Address address) {
  if (const Code refused = Enter(__func__)) return refused;
  const Lock lock(state().mutex);
  const PointerFacts facts = FactsOf(lock, address);
  uint64_t value = 0;
  size_t size = 0;
  if (facts.device == nullptr || !AttributeOf(facts, address, attribute, &value, &size)) return k_INVALID_VALUE;
  std::memcpy(data, &value, size);
  return k_SUCCESS;
}

FAKE_GPU_API Code cuPointerGetAttributes(unsigned count, const int* attributes, void** data, Address address) {
  if (const Code refused = Enter(__func__)) return refused;
  if (count == 0 || attributes == nullptr || data == nullptr) return k_INVALID_VALUE;
  const Lock lock(state().mutex);
  const PointerFacts facts = FactsOf(lock, address);
  for (unsigned i = 0; i < count; ++i) {
    uint64_t value = 0;
    size_t size = 0;
    if (!AttributeOf(facts, address, attributes[i], &value, &size)) return k_INVALID_VALUE;
    std::memcpy(data[i], &value, size);
  }
  return k_SUCCESS;
}

}  // namespace fake_gpu
