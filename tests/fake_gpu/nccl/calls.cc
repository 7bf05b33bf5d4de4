#include "nccl/calls.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "driver/options.h"

namespace fake_gpu {
namespace {

struct Table {
  std::mutex mutex;
  std::map<const void*, std::shared_ptr<Communicator>> communicators;
};

Table& table() {
  static Table* const table = new Table;
  return *table;
}

void CountCommunicator(int change) {
  const std::lock_guard lock(state().mutex);
  state().communicators["communicators"] += static_cast<uint64_t>(change);
}

}  // namespace

thread_local Group group;
thread_local std::string last_error;

Result Fail(Result code, const std::string& why, Communicator* communicator) {
  last_error = why;
  if (communicator != nullptr) communicator->last_error = why;
  if (group.depth > 0 && group.error == ncclSuccess) group.error = code;
  return code;
}

Result Begin(const char* function, Communicator* communicator) {
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

void AddCommunicator(const std::shared_ptr<Communicator>& communicator) {
  {
    const std::lock_guard lock(table().mutex);
    table().communicators[communicator.get()] = communicator;
  }
  CountCommunicator(1);
}

void RemoveCommunicator(Communicator* communicator) {
  communicator->dead = true;
  CountCommunicator(-1);
}

bool CanReach(Address address, size_t bytes) {
  const Lock lock(state().mutex);
  if (OwnerOf(lock, address) == nullptr) return IsPinned(lock, address, bytes);
  return IsAllocated(lock, address, bytes);
}

Occupation::Occupation(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {
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

}  // namespace fake_gpu
