// The constructors of all backends; registry.cc puts them together.
#pragma once

#include <memory>

#include "data/backend.h"
#include "data/backends/fake_device.h"
#include "data/kernels/fold.h"

namespace horocache::data {

// What each can do, without one.
control::BackendTraits ShmTraits();
control::BackendTraits MpiTraits();
control::BackendTraits LoopbackTraits();
control::BackendTraits FakeDeviceTraits();

// Ranks of one host through shared memory. `area.data` is filled and large enough (ShmPort::Check).
std::unique_ptr<Backend> MakeShmBackend(const SharedArea& area, const BackendOptions& options,
                                        const KernelSet* kernels);

// Ranks anywhere, over MPI; the communicators and the memory are the backend's alone.
std::unique_ptr<Backend> MakeMpiBackend(MpiMeans means, const BackendOptions& options, const KernelSet* kernels);

// One rank by itself.
std::unique_ptr<Backend> MakeLoopbackBackend(const KernelSet* kernels);

// Device tensors of `device`, staged through `host`, a backend of its own that runs the same collectives on the CPU.
std::unique_ptr<Backend> MakeFakeDeviceBackend(std::unique_ptr<Backend> host, int rank, int ranks,
                                               std::shared_ptr<FakeDevice> device);

}  // namespace horocache::data
