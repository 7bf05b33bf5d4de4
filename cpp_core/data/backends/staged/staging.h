// The means of copying between a CUDA device and the host: a stream for each direction, which the device runs at the
// same time, and pinned memory for the tiles under way.
//
// Threads: the driving thread.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

#include "base/status.h"
#include "cuda/device.h"

namespace horocache::data {

struct Staging {
  // One tile arrives from the device, one is in the host's collective, and one leaves.
  static constexpr int kSlots = 3;

  struct Slot {
    std::unique_ptr<cuda::PinnedMemory> memory;
    cuda::Event arrived;  // the last copy from the device into this slot
    cuda::Event left;     // the last copy from this slot to the device
  };

  static StatusOr<std::unique_ptr<Staging>> Make(std::shared_ptr<cuda::Device> device) {
    auto staging = std::make_unique<Staging>();
    const cuda::Device::Scope scope(*device);
    HC_RETURN_IF_ERROR(scope.status());
    HC_RETURN_IF_ERROR(Take(cuda::Stream::Make(device), &staging->from_device));
    HC_RETURN_IF_ERROR(Take(cuda::Stream::Make(device), &staging->to_device));
    for (Slot& slot : staging->slots) {
      HC_RETURN_IF_ERROR(Take(cuda::PinnedMemory::Make(device), &slot.memory));
      HC_RETURN_IF_ERROR(Take(cuda::Event::Make(device), &slot.arrived));
      HC_RETURN_IF_ERROR(Take(cuda::Event::Make(device), &slot.left));
    }
    staging->device = std::move(device);
    return staging;
  }

  std::shared_ptr<cuda::Device> device;
  std::unique_ptr<cuda::Stream> from_device, to_device;
  std::array<Slot, kSlots> slots;

 private:
  template <typename T>
  static Status Take(StatusOr<T> made, T* to) {
    if (made.ok()) *to = std::move(*made);
    return made.status();
  }
};

}  // namespace horocache::data
