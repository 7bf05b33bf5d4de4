// The functions of nccl.h that the fake has. Which of them a library exports, and the version that it reports, depends
// on the version that it is built as: CMakeLists.txt lists them by version.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "driver/options.h"
#include "nccl/arithmetic.h"
#include "nccl/communicator.h"

// Of the library's version, for example 22809.
extern "C" int fake_nccl_version();
FAKE_GPU_API fake_gpu::Code cuDevicePrimaryCtxRetain(void** context, int device);
FAKE_GPU_API fake_gpu::Code cuCtxSetCurrent(void* context);

namespace fake_gpu {
namespace {

constexpr int kUndefined = INT32_MIN;
constexpr int kFirstCreatedOperation = 1623834776;

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

// Communicators by their handles; those that are gone stay, so that their use is seen.
struct Table {
  std::mutex mutex;
  std::map<const void*, std::shared_ptr<Communicator>> communicators;
};

Table& table() {
  static Table* const table = new Table;
  return *table;
}

thread_local std::string last_error;

// A call inside a group, until the group ends.
struct Pending {
  std::shared_ptr<Communicator> communicator;
  void* stream = nullptr;
  CollectiveCall collective;  // kind kNone: a message
  MessageCall message;
};
struct Initialization {
  std::shared_ptr<Communicator> communicator;
  UniqueId id;
  void** result = nullptr;
};
struct Group {
  int depth = 0;
  Result error = ncclSuccess;
  std::vector<Pending> calls;
  std::vector<Initialization> initializations;
  std::vector<std::shared_ptr<Communicator>> aborts;
};
thread_local Group group;

Result Fail(Result code, const std::string& why, Communicator* communicator = nullptr) {
  last_error = why;
  if (communicator != nullptr) communicator->last_error = why;
  if (group.depth > 0 && group.error == ncclSuccess) group.error = code;
  return code;
}

// Begins a call: counts it, and does what the fault plan says.
Result Begin(const char* function, Communicator* communicator = nullptr) {
  CountCall(function);
  if (Exiting()) BreakRule(std::string(function) + " was called after the exit of the process began");
  const std::optional<Code> fault = PlannedFault(function, communicator == nullptr ? -1 : communicator->rank);
  if (!fault) return ncclSuccess;
  while (*fault == kHang && (communicator == nullptr || !communicator->aborted))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (*fault == kLate) std::this_thread::sleep_for(std::chrono::seconds(3));
  return *fault > 0 ? Fail(*fault, "injected") : ncclSuccess;
}

std::shared_ptr<Communicator> Find(const void* handle) {
  const std::lock_guard lock(table().mutex);
  const auto found = table().communicators.find(handle);
  return found == table().communicators.end() ? nullptr : found->second;
}

// A communicator that can be used; InvalidArgument if there is none, or if it is gone.
Result Usable(const char* function, const void* handle, std::shared_ptr<Communicator>* communicator) {
  *communicator = Find(handle);
  if (*communicator == nullptr) {
    CountCall(function);
    return Fail(ncclInvalidArgument, std::string(function) + " : comm argument is NULL");
  }
  if ((*communicator)->dead) {
    BreakRule(std::string(function) + " on a communicator that was destroyed or aborted");
    return Fail(ncclInvalidArgument, std::string(function) + ": comm was corrupted");
  }
  return Begin(function, communicator->get());
}

// One thread at a time may be inside calls of a communicator, and of a device where that is checked.
class Occupation {
 public:
  explicit Occupation(const std::shared_ptr<Communicator>& communicator) : communicator_(communicator) {
    const std::thread::id self = std::this_thread::get_id();
    std::thread::id user{};
    if (!communicator_->user.compare_exchange_strong(user, self)) {
      BreakRule("two threads use communicator " + communicator_->name + " at the same time");
      return;
    }
    owns_ = true;
    static const bool checks_device = Number("FAKE_NCCL_CHECK_DEVICE", 0) != 0;
    if (!checks_device) return;
    const std::lock_guard lock(table().mutex);
    for (const auto& [handle, other] : table().communicators) {
      if (other != communicator_ && other->device == communicator_->device && other->user != std::thread::id{} &&
          other->user != self)
        BreakRule("two threads use communicators of device " + std::to_string(other->device->number) +
                  " at the same time");
    }
  }
  ~Occupation() {
    if (owns_) communicator_->user = std::thread::id{};
  }
  Occupation(const Occupation&) = delete;
  Occupation& operator=(const Occupation&) = delete;

 private:
  const std::shared_ptr<Communicator> communicator_;
  bool owns_ = false;
};

void CountCommunicator(int change) {
  const std::lock_guard lock(state().mutex);
  state().communicators["communicators"] += static_cast<uint64_t>(change);
}

// ---- initialization

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

void Connect(const Initialization& made) {
  Segment* const segment = OpenSegment(made.id);
  std::string why = "the unique id is not valid, or its process has ended";
  const Result code = segment == nullptr ? ncclInternalError : Attach(made.communicator.get(), segment, &why);
  if (code != ncclSuccess) made.communicator->last_error = why;
  made.communicator->state = code;
}

// A blocking initialization that has failed leaves no communicator.
Result Finish(const Initialization& made) {
  const Result code = made.communicator->state;
  if (code == ncclSuccess) return code;
  *made.result = nullptr;
  made.communicator->dead = true;
  CountCommunicator(-1);
  return Fail(code, made.communicator->last_error);
}

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
  {
    const std::lock_guard lock(table().mutex);
    table().communicators[communicator.get()] = communicator;
  }
  CountCommunicator(1);
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

// ---- calls that are launched

bool ConnectsLate() {
  const char* const variable = std::getenv("NCCL_RUNTIME_CONNECT");
  return variable == nullptr || std::strcmp(variable, "0") != 0;
}

// The first call of a communicator connects the ranks, and messages connect each pair: this waits for the other ranks'
// calls, in the calling thread.
Result ConnectRanks(const std::vector<Pending>& calls) {
  if (!ConnectsLate()) return ncclSuccess;
  for (const Pending& call : calls) {
    Segment::Slot& slot = call.communicator->segment->slots[call.communicator->rank];
    if (call.collective.description.kind != Kind::kNone) {
      slot.connected = 1;
    } else {
      slot.pipes[call.message.peer] = 1;
    }
  }
  for (const Pending& call : calls) {
    Communicator* const communicator = call.communicator.get();
    const bool connected = Await(communicator, [&] {
      if (call.collective.description.kind == Kind::kNone)
        return communicator->segment->slots[call.message.peer].pipes[communicator->rank] != 0;
      for (int rank = 0; rank < communicator->ranks; ++rank) {
        if (communicator->segment->slots[rank].connected == 0) return false;
      }
      return true;
    });
    if (!connected && !communicator->aborted) return Fail(ncclRemoteError, "a peer is gone", communicator);
    if (!connected) return Fail(ncclInternalError, "the communicator was aborted", communicator);
  }
  return ncclSuccess;
}

Result EnqueueOn(const std::shared_ptr<Communicator>& communicator, void* handle, MakeWork make) {
  Lock lock(state().mutex);
  Stream* stream = nullptr;
  Code code = k_SUCCESS;
  if (handle == nullptr) {
    stream = communicator->device->legacy.get();
    code = communicator->device->error;
  } else {
    code = FindStream(lock, handle, &stream);
  }
  if (code == k_SUCCESS && stream->device != communicator->device) {
    lock.unlock();
    BreakRule("a stream of another device than the communicator's is used");
    return Fail(ncclInvalidUsage, "the stream belongs to another device", communicator.get());
  }
  if (code == k_SUCCESS) {
    lock.unlock();
    const std::lock_guard context(stream->device->context_lock);
    lock.lock();
    code = Enqueue(lock, stream, std::move(make));
    Advance(&lock);
  }
  if (code == k_SUCCESS) return ncclSuccess;
  const std::string text =
      code == k_ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : std::to_string(code);
  return Fail(ncclUnhandledCudaError, "Cuda failure '" + text + "'", communicator.get());
}

Result LaunchCalls(const std::vector<Pending>& calls) {
  if (const Result failed = ConnectRanks(calls)) return failed;
  std::vector<bool> done(calls.size(), false);
  for (size_t i = 0; i < calls.size(); ++i) {
    if (done[i]) continue;
    const Pending& call = calls[i];
    if (call.collective.description.kind != Kind::kNone) {
      const MakeWork make = MakeCollective(call.communicator, call.collective);
      if (const Result failed = EnqueueOn(call.communicator, call.stream, make)) return failed;
      continue;
    }
    std::vector<MessageCall> messages;
    for (size_t j = i; j < calls.size(); ++j) {
      if (calls[j].communicator != call.communicator || calls[j].collective.description.kind != Kind::kNone) continue;
      if (calls[j].stream != call.stream) BreakRule("messages of one group are on several streams");
      messages.push_back(calls[j].message);
      done[j] = true;
    }
    const bool self = std::ranges::any_of(messages, [&](const MessageCall& message) {
      if (message.peer != call.communicator->rank) return false;
      const auto same = [&](const MessageCall& other) {
        return other.peer == message.peer && other.sends != message.sends;
      };
      return std::ranges::none_of(messages, same);
    });
    if (self) return Fail(ncclInvalidUsage, "Trying to send to self without a matching recv", call.communicator.get());
    const MakeWork make = MakeMessages(call.communicator, std::move(messages));
    if (const Result failed = EnqueueOn(call.communicator, call.stream, make)) return failed;
  }
  return ncclSuccess;
}

// After a call of a non-blocking communicator.
Result AfterCall(Communicator* communicator, Result code) {
  static const int64_t in_progress = Number("FAKE_NCCL_IN_PROGRESS", 0);
  if (communicator->blocking || code != ncclSuccess || in_progress == 0) return code;
  communicator->in_progress = static_cast<int>(in_progress);
  return ncclInProgress;
}

Result Launch(Pending call) {
  Communicator* const communicator = call.communicator.get();
  if (communicator->state == ncclInProgress || communicator->in_progress > 0) {
    if (communicator->in_progress > 0) BreakRule("a communicator is used while its last call is in progress");
    communicator->state = ncclInvalidArgument;
    return Fail(ncclInvalidArgument, "the communicator is in progress", communicator);
  }
  if (communicator->revoked) return Fail(ncclInvalidUsage, "the communicator was revoked", communicator);
  if (const std::optional<Code> fault = PlannedFault("async", communicator->rank); fault && *fault > 0)
    communicator->state = *fault;
  if (group.depth > 0) {
    group.calls.push_back(std::move(call));
    return ncclSuccess;
  }
  const Occupation occupation(call.communicator);
  return AfterCall(communicator, LaunchCalls({std::move(call)}));
}

bool CanReach(Address address, size_t bytes) {
  const Lock lock(state().mutex);
  if (OwnerOf(lock, address) == nullptr) return IsPinned(lock, address, bytes);
  return FindAllocation(lock, address, bytes).has_value();
}

bool InWindow(const Communicator& communicator, Address address, size_t bytes) {
  return std::ranges::any_of(communicator.windows, [&](const auto& entry) {
    return address >= entry.second.begin && address + bytes <= entry.second.begin + entry.second.size;
  });
}

// Blocks of `count` elements that this rank's send and receive buffers have.
std::pair<size_t, size_t> Blocks(Kind kind, size_t ranks, bool is_root) {
  switch (kind) {
    case Kind::kReduce:
      return {1, is_root ? 1 : 0};
    case Kind::kBroadcast:
      return {is_root ? 1 : 0, 1};
    case Kind::kAllGather:
      return {1, ranks};
    case Kind::kReduceScatter:
      return {ranks, 1};
    case Kind::kAlltoAll:
      return {ranks, ranks};
    case Kind::kGather:
      return {1, is_root ? ranks : 0};
    case Kind::kScatter:
      return {is_root ? ranks : 0, 1};
    default:
      return {1, 1};
  }
}

Result Collective(const char* function, Kind kind, const void* send, void* receive, size_t count, int type,
                  int operation, int root, void* handle, void* stream) {
  std::shared_ptr<Communicator> communicator;
  if (const Result wrong = Usable(function, handle, &communicator)) return wrong;
  if (TypeSize(type) == 0)
    return Fail(ncclInvalidArgument, std::string(function) + " : invalid type " + std::to_string(type),
                communicator.get());
  CollectiveCall call;
  if (operation < 0 || operation >= kPreMulSum) {
    const auto created = communicator->operations.find(operation);
    if (created == communicator->operations.end() || created->second.type != type)
      return Fail(ncclInvalidArgument,
                  std::string(function) + " : invalid reduction operation " + std::to_string(operation),
                  communicator.get());
    call.factor = created->second.factor;
    call.device_factor = created->second.device_factor;
    operation = kPreMulSum;
  }
  const bool rooted =
      kind == Kind::kReduce || kind == Kind::kBroadcast || kind == Kind::kGather || kind == Kind::kScatter;
  if (rooted && (root < 0 || root >= communicator->ranks)) {
    // NCCL's text names the function without its prefix.
    return Fail(ncclInvalidArgument,
                std::string(function + 4) + " : invalid root " + std::to_string(root) + " (root should be in the 0.." +
                    std::to_string(communicator->ranks) + " range)",
                communicator.get());
  }
  if (count == 0) return ncclSuccess;
  call.description = {kind, type, operation, rooted ? root : -1, 0, count, 0};
  call.send = reinterpret_cast<Address>(send);
  call.receive = reinterpret_cast<Address>(receive);
  const auto [sent, received] = Blocks(kind, static_cast<size_t>(communicator->ranks), root == communicator->rank);
  const size_t bytes = count * TypeSize(type);
  if ((sent > 0 && send == nullptr) || (received > 0 && receive == nullptr)) {
    BreakRule(std::string(function) + " has NULL for a buffer");
    communicator->last_error = last_error = "Cuda failure 1 'invalid argument'";
    return ncclSuccess;
  }
  if ((sent > 0 && !CanReach(call.send, sent * bytes)) || (received > 0 && !CanReach(call.receive, received * bytes)))
    return Fail(ncclUnhandledCudaError, "Cuda failure 'invalid argument'", communicator.get());
  if (sent > 0 && received > 0)
    call.description.in_window =
        InWindow(*communicator, call.send, sent * bytes) && InWindow(*communicator, call.receive, received * bytes) ? 1
                                                                                                                    : 0;
  return Launch({communicator, stream, call, {}});
}

Result Message(const char* function, bool sends, const void* buffer, size_t count, int type, int peer, void* handle,
               void* stream) {
  std::shared_ptr<Communicator> communicator;
  if (const Result wrong = Usable(function, handle, &communicator)) return wrong;
  if (TypeSize(type) == 0) return Fail(ncclInvalidArgument, "invalid type", communicator.get());
  if (peer < 0 || peer >= communicator->ranks) return Fail(ncclInvalidArgument, "invalid peer", communicator.get());
  MessageCall call = {sends, reinterpret_cast<Address>(buffer), count * TypeSize(type), peer};
  if (call.bytes > 0 && !CanReach(call.address, call.bytes))
    return Fail(ncclUnhandledCudaError, "Cuda failure 'invalid argument'", communicator.get());
  return Launch({communicator, stream, {}, call});
}

// ---- the end

void WaitForWork(Communicator* communicator) {
  Lock lock(state().mutex);
  Device* const device = communicator->device;
  WaitUntil(&lock,
            [=] { return communicator->under_way == 0 || device->error != k_SUCCESS || device->references == 0; });
}

void SetSlot(Communicator* communicator, uint32_t value) {
  if (communicator->segment != nullptr) communicator->segment->slots[communicator->rank].state = value;
}

Result Abort(const std::shared_ptr<Communicator>& communicator) {
  communicator->aborted = true;
  SetSlot(communicator.get(), Segment::Slot::kAborted);
  WaitForWork(communicator.get());
  communicator->dead = true;
  CountCommunicator(-1);
  return ncclSuccess;
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
  communicator->dead = true;
  CountCommunicator(-1);
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

// ---- groups

FAKE_GPU_API Result ncclGroupStart() {
  CountCall(__func__);
  ++group.depth;
  return ncclSuccess;
}

FAKE_GPU_API Result ncclGroupEnd() {
  if (group.depth == 0) {
    CountCall(__func__);
    return Fail(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  }
  if (const Result fault = Begin(__func__)) group.error = fault;
  if (--group.depth > 0) return group.error;
  const Group ended = std::exchange(group, Group());
  for (const auto& communicator : ended.aborts) Abort(communicator);
  if (ended.error != ncclSuccess) return ended.error;
  std::vector<std::thread> threads;
  for (const Initialization& made : ended.initializations) threads.emplace_back([made] { Connect(made); });
  for (std::thread& thread : threads) thread.join();
  for (const Initialization& made : ended.initializations) {
    if (const Result failed = Finish(made)) return failed;
  }
  if (ended.calls.empty()) return ncclSuccess;
  std::vector<std::unique_ptr<Occupation>> occupations;
  std::vector<Communicator*> used;
  for (const Pending& call : ended.calls) {
    if (std::ranges::find(used, call.communicator.get()) != used.end()) continue;
    used.push_back(call.communicator.get());
    occupations.push_back(std::make_unique<Occupation>(call.communicator));
  }
  Result code = LaunchCalls(ended.calls);
  for (Communicator* communicator : used) {
    if (AfterCall(communicator, code) == ncclInProgress) code = ncclInProgress;
  }
  return code;
}

// ---- collectives

FAKE_GPU_API Result ncclAllReduce(const void* send, void* receive, size_t count, int type, int operation, void* handle,
                                  void* stream) {
  return Collective(__func__, Kind::kAllReduce, send, receive, count, type, operation, -1, handle, stream);
}

FAKE_GPU_API Result ncclReduce(const void* send, void* receive, size_t count, int type, int operation, int root,
                               void* handle, void* stream) {
  return Collective(__func__, Kind::kReduce, send, receive, count, type, operation, root, handle, stream);
}

FAKE_GPU_API Result ncclBroadcast(const void* send, void* receive, size_t count, int type, int root, void* handle,
                                  void* stream) {
  return Collective(__func__, Kind::kBroadcast, send, receive, count, type, kSum, root, handle, stream);
}

FAKE_GPU_API Result ncclBcast(void* buffer, size_t count, int type, int root, void* handle, void* stream) {
  return Collective(__func__, Kind::kBroadcast, buffer, buffer, count, type, kSum, root, handle, stream);
}

FAKE_GPU_API Result ncclAllGather(const void* send, void* receive, size_t count, int type, void* handle, void* stream) {
  return Collective(__func__, Kind::kAllGather, send, receive, count, type, kSum, -1, handle, stream);
}

FAKE_GPU_API Result ncclReduceScatter(const void* send, void* receive, size_t count, int type, int operation,
                                      void* handle, void* stream) {
  return Collective(__func__, Kind::kReduceScatter, send, receive, count, type, operation, -1, handle, stream);
}

FAKE_GPU_API Result ncclAlltoAll(const void* send, void* receive, size_t count, int type, void* handle, void* stream) {
  return Collective(__func__, Kind::kAlltoAll, send, receive, count, type, kSum, -1, handle, stream);
}

FAKE_GPU_API Result ncclGather(const void* send, void* receive, size_t count, int type, int root, void* handle,
                               void* stream) {
  return Collective(__func__, Kind::kGather, send, receive, count, type, kSum, root, handle, stream);
}

FAKE_GPU_API Result ncclScatter(const void* send, void* receive, size_t count, int type, int root, void* handle,
                                void* stream) {
  return Collective(__func__, Kind::kScatter, send, receive, count, type, kSum, root, handle, stream);
}

FAKE_GPU_API Result ncclSend(const void* buffer, size_t count, int type, int peer, void* handle, void* stream) {
  return Message(__func__, true, buffer, count, type, peer, handle, stream);
}

FAKE_GPU_API Result ncclRecv(void* buffer, size_t count, int type, int peer, void* handle, void* stream) {
  return Message(__func__, false, buffer, count, type, peer, handle, stream);
}

// ---- created operations

FAKE_GPU_API Result ncclRedOpCreatePreMulSum(int* operation, void* scalar, int type, int residence, void* handle) {
  std::shared_ptr<Communicator> communicator;
  if (const Result wrong = Usable(__func__, handle, &communicator)) return wrong;
  if (TypeSize(type) == 0 || operation == nullptr || scalar == nullptr)
    return Fail(ncclInvalidArgument, "invalid type", communicator.get());
  Communicator::CreatedOperation created;
  created.type = type;
  if (residence == 1) {
    const auto* const bytes = static_cast<const std::byte*>(scalar);
    created.factor.assign(bytes, bytes + TypeSize(type));
  } else {
    created.device_factor = reinterpret_cast<Address>(scalar);
  }
  int number = kFirstCreatedOperation;
  while (communicator->operations.contains(number)) ++number;
  communicator->operations[number] = std::move(created);
  *operation = number;
  return ncclSuccess;
}

FAKE_GPU_API Result ncclRedOpDestroy(int operation, void* handle) {
  std::shared_ptr<Communicator> communicator;
  if (const Result wrong = Usable(__func__, handle, &communicator)) return wrong;
  if (communicator->operations.erase(operation) == 0)
    return Fail(ncclInvalidArgument, "ncclRedOpDestroy : operator unknown", communicator.get());
  return ncclSuccess;
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
