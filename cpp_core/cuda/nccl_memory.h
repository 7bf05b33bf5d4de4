// Memory of a device that NCCL has allocated: it can be registered as a window, which other ranks' devices reach.
//
// Threads: one at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "cuda/device.h"
#include "cuda/nccl.h"

namespace horocache::cuda {

class NcclMemory {
 public:
  // Requires a Scope. kUnsupported if this version of NCCL has no windows.
  static StatusOr<std::shared_ptr<const NcclMemory>> Make(std::shared_ptr<const Nccl> nccl,
                                                          std::shared_ptr<const Device> device, int64_t bytes);
  // May wait for all work of the device, unless it was given up.
  ~NcclMemory();
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // It is never freed.
  void GiveUp() const noexcept { given_up_ = true; }

 private:
  NcclMemory(std::shared_ptr<const Nccl> nccl, std::shared_ptr<const Device> device, std::byte* data, int64_t bytes);

  const std::shared_ptr<const Nccl> nccl_;
  const std::shared_ptr<const Device> device_;
  std::byte* const data_;
  const int64_t bytes_;
  mutable std::atomic<bool> given_up_{false};
};

}  // namespace horocache::cuda
