#include "cuda/nccl_memory.h"

#include <utility>

namespace horocache::cuda {

StatusOr<std::shared_ptr<const NcclMemory>> NcclMemory::Make(std::shared_ptr<const Nccl> nccl,
                                                             std::shared_ptr<const Device> device, int64_t bytes) {
  if (!nccl->has_windows()) {
    return UnsupportedError("NCCL " + Nccl::VersionText(nccl->version()) + " has no windows; they need " +
                            Nccl::VersionText(Nccl::kOldestWithWindows) + " or newer");
  }
  void* memory = nullptr;
  HC_RETURN_IF_ERROR(nccl->Check(nccl->MemAlloc(&memory, static_cast<size_t>(bytes)), "ncclMemAlloc"));
  return std::shared_ptr<const NcclMemory>(
      new NcclMemory(std::move(nccl), std::move(device), static_cast<std::byte*>(memory), bytes));
}

NcclMemory::NcclMemory(std::shared_ptr<const Nccl> nccl, std::shared_ptr<const Device> device, std::byte* data,
                       int64_t bytes)
    : nccl_(std::move(nccl)), device_(std::move(device)), data_(data), bytes_(bytes) {}

NcclMemory::~NcclMemory() {
  if (given_up_) return;
  const Device::Scope scope(*device_);
  if (scope.status().ok()) nccl_->MemFree(data_);
}

}  // namespace horocache::cuda
