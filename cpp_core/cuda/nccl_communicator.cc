#include "cuda/nccl_communicator.h"

#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace horocache::cuda {

struct NcclCommunicator::Shared {
  Shared(std::shared_ptr<const Nccl> library, std::shared_ptr<Device> on_device, const NcclUniqueId& unique_id,
         Place at)
      : nccl(std::move(library)), device(std::move(on_device)), id(unique_id), place(std::move(at)) {}

  const std::shared_ptr<const Nccl> nccl;
  const std::shared_ptr<Device> device;
  const NcclUniqueId id;
  const Place place;

  Mutex mutex;
  NcclCommHandle comm HC_GUARDED_BY(mutex) = nullptr;
  Status connected HC_GUARDED_BY(mutex) = NoMemoryError();  // until Connect has ended
  bool given_up HC_GUARDED_BY(mutex) = false;               // aborted while it was connecting
  std::shared_ptr<const NcclMemory> memory HC_GUARDED_BY(mutex);
  NcclWindowHandle window HC_GUARDED_BY(mutex) = nullptr;
  Status registered HC_GUARDED_BY(mutex) = NoMemoryError();  // until Register has ended

  void Connect() HC_EXCLUDES(mutex);
  void Register() HC_EXCLUDES(mutex);
  void FreeMemory() HC_EXCLUDES(mutex);
  void GiveUpMemory() HC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    if (memory != nullptr) memory->GiveUp();
  }
  void Abort(NcclCommHandle handle) const;
  void Destroy(NcclCommHandle handle) HC_EXCLUDES(mutex);
  NcclCommHandle handle() HC_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    return comm;
  }
};

void NcclCommunicator::Shared::Connect() {
  NcclCommHandle made = nullptr;
  Status status;
  bool unwanted = false;
  {
    const Device::Scope scope(*device);
    status = scope.status();
    if (status.ok()) {
      NcclConfig config = nccl->Config();
      config.name = place.name.c_str();
      const NcclResult result = nccl->CommInitRankConfig(&made, place.ranks, id, place.rank, &config);
      status = result == kNcclInProgress
                   ? UnsupportedError("NCCL_COMM_BLOCKING=0 is set, and horocache needs communicators that block")
                   : nccl->Check(result, "ncclCommInitRankConfig");
      unwanted = result == kNcclInProgress;
    }
  }
  {
    const MutexLock lock(mutex);
    unwanted |= given_up && status.ok();
    if (!unwanted && status.ok()) comm = made;
    connected = std::move(status);
  }
  if (unwanted) Abort(made);
}

void NcclCommunicator::Shared::Abort(NcclCommHandle handle) const {
  const Device::Scope scope(*device);
  if (scope.status().ok()) nccl->CommAbort(handle);
}

void NcclCommunicator::Shared::Destroy(NcclCommHandle handle) {
  NcclWindowHandle registered_window = nullptr;
  {
    const MutexLock lock(mutex);
    registered_window = window;
  }
  {
    const Device::Scope scope(*device);
    if (!scope.status().ok()) return;
    if (registered_window != nullptr) nccl->CommWindowDeregister(handle, registered_window);
    nccl->CommDestroy(handle);
  }
  FreeMemory();
}

void NcclCommunicator::Shared::Register() {
  NcclCommHandle handle = nullptr;
  std::shared_ptr<const NcclMemory> given;
  {
    const MutexLock lock(mutex);
    handle = comm;
    given = memory;
  }
  NcclWindowHandle made = nullptr;
  Status status;
  {
    const Device::Scope scope(*device);
    status = scope.status();
    if (status.ok()) {
      status = nccl->Check(
          nccl->CommWindowRegister(handle, given->data(), static_cast<size_t>(given->bytes()), &made, kNcclSymmetric),
          "ncclCommWindowRegister", handle);
    }
    // So it was for memory that has no way between the ranks.
    if (status.ok() && made == nullptr) status = UnsupportedError("NCCL has made no window of the memory");
  }
  const MutexLock lock(mutex);
  window = made;
  registered = std::move(status);
}

// May wait for the device's work.
void NcclCommunicator::Shared::FreeMemory() {
  std::shared_ptr<const NcclMemory> last;
  const MutexLock lock(mutex);
  last = std::move(memory);
}

NcclCommunicator::NcclCommunicator(std::shared_ptr<const Nccl> nccl, std::shared_ptr<Device> device,
                                   const NcclUniqueId& id, Place place)
    : shared_(std::make_shared<Shared>(std::move(nccl), std::move(device), id, std::move(place))),
      connect_("hc-nccl-connect", [shared = shared_] { shared->Connect(); }) {}

NcclCommunicator::~NcclCommunicator() {
  if (aborts_) {
    FreeMemory();
    return;
  }
  if (!HasConnected()) {
    StartAbort();
    return;
  }
  const NcclCommHandle comm = handle();
  if (comm == nullptr || Exiting()) return;  // nothing is called at exit, also not to free memory
  try {
    const LimitedCall destroy("hc-nccl-destroy", [shared = shared_, comm] { shared->Destroy(comm); });
    static_cast<void>(destroy.ReturnedBy(DeadlineNs(kDestroySeconds)));
  } catch (const std::exception&) {  // no thread or no memory: the end of the process frees it
    shared_->GiveUpMemory();
  }
}

void NcclCommunicator::Keep(std::shared_ptr<const NcclMemory> memory) {
  const MutexLock lock(shared_->mutex);
  shared_->memory = std::move(memory);
}

void NcclCommunicator::StartRegistering() {
  registering_ = std::make_unique<LimitedCall>("hc-nccl-window", [shared = shared_] { shared->Register(); });
}

Status NcclCommunicator::registered() const {
  const MutexLock lock(shared_->mutex);
  return shared_->registered;
}

// After an abort. Calls that have not returned may still use the memory, and free it when they do.
void NcclCommunicator::FreeMemory() const {
  if (cannot_abort_) shared_->GiveUpMemory();
  if ((registering_ != nullptr && !registering_->Returned()) || !AbortedBy(0)) return;
  {
    const MutexLock lock(shared_->mutex);
    if (shared_->memory == nullptr) return;
  }
  try {
    const LimitedCall free("hc-nccl-free", [shared = shared_] { shared->FreeMemory(); });
    static_cast<void>(free.ReturnedBy(DeadlineNs(kDestroySeconds)));
  } catch (const std::exception&) {  // no thread or no memory
    shared_->GiveUpMemory();
  }
}

Status NcclCommunicator::connected() const {
  const MutexLock lock(shared_->mutex);
  return shared_->connected;
}

NcclCommHandle NcclCommunicator::handle() const { return shared_->handle(); }

Status NcclCommunicator::AsyncError() const {
  const NcclCommHandle comm = handle();
  NcclResult error = kNcclSuccess;
  const NcclResult asked = shared_->nccl->CommGetAsyncError(comm, &error);
  HC_RETURN_IF_ERROR(shared_->nccl->Check(asked, "ncclCommGetAsyncError", comm));
  return error == kNcclInProgress ? Status::Ok() : shared_->nccl->Check(error, "a collective of NCCL", comm);
}

void NcclCommunicator::StartAbort() {
  if (std::exchange(aborts_, true)) return;
  NcclCommHandle comm = nullptr;
  {
    const MutexLock lock(shared_->mutex);
    shared_->given_up = true;
    comm = shared_->comm;
  }
  if (comm == nullptr) return;
  try {
    abort_ = std::make_unique<LimitedCall>("hc-nccl-abort", [shared = shared_, comm] { shared->Abort(comm); });
  } catch (const std::exception&) {  // no thread or no memory: an abort in this thread might hang
    cannot_abort_ = true;
  }
}

bool NcclCommunicator::AbortedBy(int64_t deadline_ns) const {
  if (cannot_abort_) return false;
  return abort_ == nullptr || abort_->ReturnedBy(deadline_ns);
}

}  // namespace horocache::cuda
