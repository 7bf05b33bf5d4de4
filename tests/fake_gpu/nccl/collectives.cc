// Collectives and messages: their checks, and their way into streams.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "driver/options.h"
#include "nccl/arithmetic.h"
#include "nccl/calls.h"

namespace fake_gpu {
namespace {

constexpr int kFirstCreatedOperation = 1623834776;

bool ConnectsLate() {
  const char* const variable = std::getenv("NCCL_RUNTIME_CONNECT");
  return variable == nullptr || std::strcmp(variable, "0") != 0;
}

// The first collective of a communicator connects the ranks, unless it did when it was made; the first message between
// two ranks connects the pair. This waits for the other ranks' calls, in the calling thread.
Result ConnectRanks(const std::vector<Pending>& all) {
  std::vector<Pending> calls;
  for (const Pending& call : all) {
    if (ConnectsLate() || call.collective.description.kind == Kind::kNone) calls.push_back(call);
  }
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

}  // namespace

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

Result AfterCall(Communicator* communicator, Result code) {
  static const int64_t in_progress = Number("FAKE_NCCL_IN_PROGRESS", 0);
  if (communicator->blocking || code != ncclSuccess || in_progress == 0) return code;
  communicator->in_progress = static_cast<int>(in_progress);
  return ncclInProgress;
}

namespace {

Result Launch(const std::string& function, Pending call) {
  Communicator* const communicator = call.communicator.get();
  if (communicator->state == ncclInProgress || communicator->in_progress > 0) {
    if (communicator->in_progress > 0) BreakRule("a communicator is used while its last call is in progress");
    communicator->state = ncclInvalidArgument;
    return Fail(ncclInvalidArgument, "the communicator is in progress", communicator);
  }
  if (communicator->revoked) return Fail(ncclInvalidUsage, "the communicator was revoked", communicator);
  if (Current() != communicator->device)
    BreakRule(function + " is called while another device than the communicator's is current");
  if (const std::optional<Code> fault = PlannedFault("async", communicator->rank); fault && *fault > 0)
    communicator->state = *fault;
  if (group.depth > 0) {
    group.calls.push_back(std::move(call));
    return ncclSuccess;
  }
  const Occupation occupation(call.communicator);
  return AfterCall(communicator, LaunchCalls({std::move(call)}));
}

// One more than the place in a window of a collective's buffers; 0: they are in none. NCCL's ways for windows take the
// place on this rank for that on all.
uint64_t PlaceInWindow(const Communicator& communicator, Address address, size_t bytes) {
  for (const auto& [handle, window] : communicator.windows) {
    if (address >= window.begin && address + bytes <= window.begin + window.size) return 1 + address - window.begin;
  }
  return 0;
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
  if (kind == Kind::kAllReduce || kind == Kind::kAllGather || kind == Kind::kReduceScatter) {
    const uint64_t place = PlaceInWindow(*communicator, call.send, sent * bytes);
    call.description.place_in_window = PlaceInWindow(*communicator, call.receive, received * bytes) > 0 ? place : 0;
  }
  return Launch(function, {communicator, stream, call, {}});
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
  return Launch(function, {communicator, stream, {}, call});
}

}  // namespace

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

}  // namespace fake_gpu
