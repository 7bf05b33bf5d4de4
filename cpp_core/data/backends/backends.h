// The factory functions of all backends; registry.cc calls them.
#pragma once

#include <memory>

#include "data/backend.h"
#include "data/kernels/fold.h"

namespace horocache::data {

// The traits of each backend; callable without an instance.
control::BackendTraits ShmTraits();
control::BackendTraits MpiTraits();
control::BackendTraits LoopbackTraits();

// Connects the ranks of one host through shared memory. `area.data` must be filled and large enough (ShmPort::Check).
std::unique_ptr<Backend> MakeShmBackend(const SharedArea& area, const BackendOptions& options,
                                        const KernelSet* kernels);

// Connects ranks on any hosts over MPI. The communicators and the memory in `means` are for this backend only.
std::unique_ptr<Backend> MakeMpiBackend(MpiResources resources, const BackendOptions& options,
                                        const KernelSet* kernels);

// Runs the collectives of `host` on tensors of CUDA devices, too: tiles of a tensor go through pinned memory of the
// host. All ranks must use it alike. Results that the operation allocates (`Collective::output`) are in memory of the
// host.
std::unique_ptr<Backend> MakeStagedBackend(std::unique_ptr<Backend> host, int rank, int ranks,
                                           const BackendOptions& options);
control::BackendTraits StagedTraits(control::BackendTraits host);

// Runs the collectives of CUDA tensors by NCCL where it can, and all others by `host`, a staged backend. `levels`: for
// those in two levels; may be null.
class NcclLevels;
std::unique_ptr<Backend> MakeNcclBackend(std::unique_ptr<Backend> host, std::unique_ptr<NcclLevels> levels, int rank,
                                         int ranks, const BackendOptions& options);
control::BackendTraits NcclTraits();

// Runs collectives by calls to the program, which a thread of the program takes; see Note [Backends of the program] in
// user/calls.h. `host` counts rows; it is for this backend only.
class UserCalls;
std::unique_ptr<Backend> MakeUserBackend(control::BackendTraits traits, std::unique_ptr<Backend> host,
                                         std::shared_ptr<UserCalls> calls, int rank, int ranks,
                                         const KernelSet* kernels);

// Runs the collectives of a single rank.
std::unique_ptr<Backend> MakeLoopbackBackend(const KernelSet* kernels);

}  // namespace horocache::data
