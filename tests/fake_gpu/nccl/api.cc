// The library, communicators and memory. Which functions a library exports, and the version that it reports, depends
// on the version that it is built as: CMakeLists.txt lists them by version.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "driver/options.h"
#include "nccl/calls.h"

// Of the library's version, for example 22809.
extern "C" int fake_nccl_version();
FAKE_GPU_API fake_gpu::Code cuDevicePrimaryCtxRetain(void** context, int device);
FAKE_GPU_API fake_gpu::Code cuCtxSetCurrent(void* context);

namespace fake_gpu {
namespace {

constexpr int kUndefined = INT32_MIN;

// The layout of ncclConfig_t; `size` says how much of it there is.
struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cga_cluster_size;
  int min_ctas;
  int max_ctas;
  const char* network;
  int split_share;
  int traffic_class;
  const char* name;
};

bool UseSomeContext() {
  if (Current() != nullptr) return true;
  void* context = nullptr;
  return cuDevicePrimaryCtxRetain(&context, 0) == k_SUCCESS && cuCtxSetCurrent(context) == k_SUCCESS;
}

Result CheckConfig(const Config* config, Communicator* communicator) {
  if (config == nullptr) return ncclSuccess;
  if (config->size < 24) return Fail(ncclInvalidArgument, "the configuration is too small");
  if (config->magic != 0xCAFEBEEF) return Fail(ncclInvalidArgument, "ncclConfig_t argument not initialized");
  const bool has_ctas = config->size >= 40;
  if (config->blocking != kUndefined && config->blocking != 0 && config->blocking != 1)
    return Fail(ncclInvalidArgument, "Invalid config blocking attribute value " + std::to_string(config->blocking));
  if (has_ctas) {
    const int least = config->min_ctas;
    const int most = config->max_ctas;
    if ((least != kUndefined && least <= 0) || (most != kUndefined && most <= 0) ||
        (least != kUndefined && most != kUndefined && least > most))
      return Fail(ncclInvalidArgument, "Invalid config min/max channels attribute value");
    if (config->network != nullptr && std::strcmp(config->network, "Socket") != 0 &&
        std::strcmp(config->network, "IB") != 0)
      return Fail(ncclInvalidUsage, std::string("no network named ") + config->network);
  }
  communicator->blocking = config->blocking != 0;
  if (config->size >= 72 && config->name != nullptr && fake_nccl_version() >= 22700) communicator->name = config->name;
  return ncclSuccess;
}

void WaitForWork(Communicator* communicator) {
  Lock lock(state().mutex);
  Device* const device = communicator->device;
  WaitUntil(&lock,
            [=] { return communicator->under_way == 0 || device->error != k_SUCCESS || device->references == 0; });
}

void SetSlot(Communicator* communicator, uint32_t value) {
  if (communicator->segment != nullptr) communicator->segment->slots[communicator->rank].state = value;
}

}  // namespace

void Connect(const Initialization& made) {
  Segment* const segment = OpenSegment(made.id);
  std::string why = "the unique id is not valid, or its process has ended";
  const Result code = segment == nullptr ? ncclInternalError : Attach(made.communicator.get(), segment, &why);
  if (code != ncclSuccess) made.communicator->last_error = why;
  made.communicator->state = code;
}

Result Finish(const Initialization& made) {
  const Result code = made.communicator->state;
  if (code == ncclSuccess) return code;
  *made.result = nullptr;
  RemoveCommunicator(made.communicator.get());
  return Fail(code, made.communicator->last_error);
}

Result Abort(const std::shared_ptr<Communicator>& communicator) {
  communicator->aborted = true;
  SetSlot(communicator.get(), Segment::Slot::kAborted);
  WaitForWork(communicator.get());
  RemoveCommunicator(communicator.get());
  return ncclSuccess;
}

namespace {

Result Initialize(const char* function, void** result, int ranks, const UniqueId& id, int rank, const Config* config) {
  if (const Result fault = Begin(function)) return fault;
  if (result == nullptr) return Fail(ncclInvalidArgument, "CommInitRank : newcomm argument is NULL");
  if (ranks < 1 || rank < 0 || rank >= ranks)
    return Fail(ncclInvalidArgument, "Invalid rank requested : " + std::to_string(rank) + "/" + std::to_string(ranks));
  if (ranks > kMaxRanks) return Fail(ncclInternalError, "the fake has room for 16 ranks");
  if (!UseSomeContext()) return Fail(ncclUnhandledCudaError, "Cuda failure 'initialization error'");
  auto communicator = std::make_shared<Communicator>();
  if (const Result wrong = CheckConfig(config, communicator.get())) return wrong;
  communicator->rank = rank;
  communicator->ranks = ranks;
  communicator->device = Current();
  if (const char* const variable = std::getenv("NCCL_COMM_BLOCKING"); variable != nullptr)
    communicator->blocking = std::strcmp(variable, "0") != 0;
  AddCommunicator(communicator);
  *result = communicator.get();
  Initialization made = {communicator, id, result};
  if (!communicator->blocking) {
    communicator->in_progress = 2;  // at least: however quick the thread is, the caller sees that it is in progress
    std::thread([made] { Connect(made); }).detach();
    return ncclInProgress;
  }
  if (group.depth > 0) {
    group.initializations.push_back(made);
    return ncclSuccess;
  }
  Connect(made);
  return Finish(made);
}

}  // namespace

// ---- library

FAKE_GPU_API Result ncclGetVersion(int* version) {
  CountCall(__func__);
  if (version == nullptr) return ncclInvalidArgument;
  *version = fake_nccl_version();
  return ncclSuccess;
}

FAKE_GPU_API Result ncclGetUniqueId(UniqueId* id) {
  if (const Result fault = Begin(__func__)) return fault;
  if (id == nullptr) return Fail(ncclInvalidArgument, "GetUniqueId : out argument is NULL");
  return MakeId(id);
}

FAKE_GPU_API const char* ncclGetErrorString(Result code) {
  switch (code) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    case 8:
      return fake_nccl_version() >= 23000 ? "timeout" : "unknown result code";
    default:
      return "unknown result code";
  }
}

FAKE_GPU_API const char* ncclGetLastError(void* handle) {
  static thread_local std::string text;
  const std::shared_ptr<Communicator> communicator = Find(handle);
  text = communicator != nullptr && !communicator->last_error.empty() ? communicator->last_error : last_error;
  return text.c_str();
}

// ---- communicators

FAKE_GPU_API Result ncclCommInitRank(void** result, int ranks, UniqueId id, int rank) {
  return Initialize(__func__, result, ranks, id, rank, nullptr);
}

FAKE_GPU_API Result ncclCommInitRankConfig(void** result, int ranks, UniqueId id, int rank, const Config* config) {
  return Initialize(__func__, result, ranks, id, rank, config);
}

FAKE_GPU_API Result ncclCommFinalize(void* handle) {
  if (handle == nullptr) return ncclSuccess;
  std::shared_ptr<Communicator> communicator;
  if (const Result wrong = Usable(__func__, handle, &communicator)) return wrong;
  if (communicator->finalized) return Fail(ncclInvalidArgument, "the communicator is finalized", communicator.get());
  communicator->finalized = true;
  if (communicator->blocking) {
    WaitForWork(communicator.get());
    return ncclSuccess;
  }
  communicator->state = ncclInProgress;
  std::thread([communicator] {
    WaitForWork(communicator.get());
    communicator->state = ncclSuccess;
  }).detach();
  return ncclInProgress;
}

// Waits for the other ranks' calls, as the real one does on one host.
FAKE_GPU_API Result ncclCommDestroy(void* handle) {
  if (handle == nullptr) return ncclSuccess;
  std::shared_ptr<Communicator> communicator;
  if (const Result wrong = Usable(__func__, handle, &communicator)) return wrong;
  const Occupation occupation(communicator);
  WaitForWork(communicator.get());
  SetSlot(communicator.get(), Segment::Slot::kDestroyed);
  Await(communicator.get(), [&] {
    for (int rank = 0; rank < communicator->ranks; ++rank) {
      const uint32_t state = communicator->segment->slots[rank].state;
      if (state == Segment::Slot::kAttached) return false;
    }
    return true;
  });
  RemoveCommunicator(communicator.get());
  return ncclSuccess;
}

FAKE_GPU_API Result ncclCommAbort(void* handle) {
  if (handle == nullptr) return ncclSuccess;
  const std::shared_ptr<Communicator> communicator = Find(handle);
  if (communicator == nullptr) return Fail(ncclInvalidArgument, "CommAbort : comm argument is wrong");
  CountCall(__func__);
  if (communicator->dead) {
    BreakRule("ncclCommAbort on a communicator that was destroyed or aborted");
    std::abort();
  }
  communicator->aborted = true;  // calls that hang return
  const std::optional<Code> fault = PlannedFault(__func__, communicator->rank);
  while (fault && *fault == kHang) std::this_thread::sleep_for(std::chrono::seconds(1));
  if (fault && *fault == kLate) std::this_thread::sleep_for(std::chrono::seconds(3));
  if (group.depth > 0) {
    group.aborts.push_back(communicator);
    return ncclSuccess;
  }
  return Abort(communicator);
}

FAKE_GPU_API Result ncclCommRevoke(void* handle, int) {
  std::shared_ptr<Communicator> communicator;
  if (const Result wrong = Usable(__func__, handle, &communicator)) return wrong;
  communicator->revoked = true;
  WaitForWork(communicator.get());
  return ncclSuccess;
}

FAKE_GPU_API Result ncclCommGetAsyncError(void* handle, Result* error) {
  CountCall(__func__);
  const std::shared_ptr<Communicator> communicator = Find(handle);
  if (communicator == nullptr || error == nullptr)
    return Fail(ncclInvalidArgument, "CommGetAsyncError : comm argument is NULL");
  if (communicator->dead) {
    BreakRule("ncclCommGetAsyncError on a communicator that was destroyed or aborted");
    return Fail(ncclInvalidArgument, "CommGetAsyncError: comm was corrupted");
  }
  if (communicator->in_progress > 0) {
    --communicator->in_progress;
    *error = ncclInProgress;
  } else {
    *error = communicator->state;
  }
  return ncclSuccess;
}

namespace {

Result Fact(const char* function, void* handle, int* value, int (*fact)(const Communicator&)) {
  std::shared_ptr<Communicator> communicator;
  if (const Result wrong = Usable(function, handle, &communicator)) return wrong;
  if (communicator->state == ncclInProgress || communicator->in_progress > 0 || value == nullptr)
    return Fail(ncclInvalidArgument, "the communicator is in progress", communicator.get());
  *value = fact(*communicator);
  return ncclSuccess;
}

}  // namespace

FAKE_GPU_API Result ncclCommCount(void* handle, int* count) {
  return Fact(__func__, handle, count, [](const Communicator& communicator) { return communicator.ranks; });
}

FAKE_GPU_API Result ncclCommUserRank(void* handle, int* rank) {
  return Fact(__func__, handle, rank, [](const Communicator& communicator) { return communicator.rank; });
}

FAKE_GPU_API Result ncclCommCuDevice(void* handle, int* device) {
  return Fact(__func__, handle, device, [](const Communicator& communicator) { return communicator.device->number; });
}

// The ranks of one colour take the id of the first of them, by key and then by rank.
FAKE_GPU_API Result ncclCommSplit(void* handle, int color, int key, void** result, const Config* config) {
  std::shared_ptr<Communicator> parent;
  if (const Result wrong = Usable(__func__, handle, &parent)) return wrong;
  const Occupation occupation(parent);
  Segment::Slot& own = parent->segment->slots[parent->rank];
  own.split_color = color;
  own.split_key = key;
  if (const Result failed = MakeId(&own.split_id)) return failed;
  const uint64_t turn = ++parent->splits;
  own.splits = turn;
  const bool all = Await(parent.get(), [&] {
    for (int rank = 0; rank < parent->ranks; ++rank) {
      if (parent->segment->slots[rank].splits < turn) return false;
    }
    return true;
  });
  if (!all) return Fail(ncclRemoteError, "a peer is gone", parent.get());
  if (color < 0) {
    *result = nullptr;
    return ncclSuccess;
  }
  std::vector<std::pair<int, int>> members;
  for (int rank = 0; rank < parent->ranks; ++rank) {
    if (parent->segment->slots[rank].split_color == color)
      members.emplace_back(parent->segment->slots[rank].split_key, rank);
  }
  std::ranges::sort(members);
  const auto place = std::ranges::find(members, parent->rank, [](const auto& member) { return member.second; });
  const UniqueId id = parent->segment->slots[members.front().second].split_id;
  return Initialize(__func__, result, static_cast<int>(members.size()), id, static_cast<int>(place - members.begin()),
                    config);
}

// ---- memory

FAKE_GPU_API Result ncclMemAlloc(void** pointer, size_t bytes) {
  if (const Result fault = Begin(__func__)) return fault;
  if (pointer == nullptr || bytes == 0) return Fail(ncclInvalidArgument, "invalid argument to ncclMemAlloc");
  Device* const device = Current();
  if (device == nullptr) return Fail(ncclUnhandledCudaError, "Cuda failure 'invalid device context'");
  const Lock lock(state().mutex);
  Address address = 0;
  if (Allocate(lock, device, bytes, true, &address) != k_SUCCESS)
    return Fail(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'");
  *pointer = reinterpret_cast<void*>(address);
  return ncclSuccess;
}

FAKE_GPU_API Result ncclMemFree(void* pointer) {
  CountCall(__func__);
  if (pointer == nullptr) return ncclSuccess;
  Lock lock(state().mutex);
  const auto address = reinterpret_cast<Address>(pointer);
  Device* const device = OwnerOf(lock, address);
  if (device == nullptr) return Fail(ncclInvalidArgument, "not from ncclMemAlloc");
  WaitUntil(&lock, [device] { return device->error != k_SUCCESS || !Busy(*device); });
  return Free(lock, address) == k_SUCCESS ? ncclSuccess : Fail(ncclInvalidArgument, "not from ncclMemAlloc");
}

FAKE_GPU_API Result ncclCommRegister(void* handle, void* buffer, size_t bytes, void** registration) {
  std::shared_ptr<Communicator> communicator;
  if (const Result wrong = Usable(__func__, handle, &communicator)) return wrong;
  if (!CanReach(reinterpret_cast<Address>(buffer), bytes))
    return Fail(ncclInvalidArgument, "the buffer is not allocated", communicator.get());
  *registration = buffer;
  return ncclSuccess;
}

FAKE_GPU_API Result ncclCommDeregister(void* handle, void*) {
  std::shared_ptr<Communicator> communicator;
  return Usable(__func__, handle, &communicator);
}

// All ranks register at the same time.
FAKE_GPU_API Result ncclCommWindowRegister(void* handle, void* buffer, size_t bytes, void** window, int) {
  std::shared_ptr<Communicator> communicator;
  if (const Result wrong = Usable(__func__, handle, &communicator)) return wrong;
  *window = nullptr;
  const auto begin = reinterpret_cast<Address>(buffer);
  {
    const Lock lock(state().mutex);
    const std::optional<Device::Allocation> allocation = FindAllocation(lock, begin, bytes);
    if (!allocation || !allocation->exportable)
      return Fail(ncclUnhandledCudaError, "Cuda failure 'invalid argument'", communicator.get());
  }
  const Occupation occupation(communicator);
  auto* const segment = communicator->segment;
  Segment::Slot& slot = segment->slots[communicator->rank];
  const uint64_t turn = ++communicator->splits;
  slot.splits = turn;
  const bool all = Await(communicator.get(), [&] {
    for (int rank = 0; rank < communicator->ranks; ++rank) {
      if (segment->slots[rank].splits < turn) return false;
    }
    return true;
  });
  if (!all) return Fail(ncclRemoteError, "a peer is gone", communicator.get());
  static std::atomic<uintptr_t> last = 0x1000;
  *window = reinterpret_cast<void*>(++last);
  communicator->windows[*window] = {begin, bytes};
  return ncclSuccess;
}

FAKE_GPU_API Result ncclCommWindowDeregister(void* handle, void* window) {
  std::shared_ptr<Communicator> communicator;
  if (const Result wrong = Usable(__func__, handle, &communicator)) return wrong;
  return communicator->windows.erase(window) == 1 ? ncclSuccess
                                                  : Fail(ncclInvalidArgument, "no such window", communicator.get());
}

}  // namespace fake_gpu
