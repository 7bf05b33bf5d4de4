// The backends of data/. process_set_factory.cc appends `program`, and tests the fake device. A backend's index in it
// is its number in wire::Choice, so the order must not depend on anything that may differ between ranks.

#include <memory>
#include <utility>
#include <vector>

#include "data/backend.h"
#include "data/backends/backends.h"
#include "data/backends/nccl/two_level.h"
#include "data/backends/shm/tile_slots.h"

namespace horocache::data {

Status Event::HoldBack(cuda::Stream*, bool*) {
  return UnsupportedError("the tensors are not computed by a stream of a CUDA device");
}

SharedArea PartOf(const SharedArea& area, size_t begin, size_t bytes) {
  SharedArea part = area;
  for (std::byte*& base : part.data) base += begin;
  part.data_bytes = bytes;
  return part;
}

std::vector<control::BackendTraits> BackendTraitsFor(int ranks, Transports transports) {
  std::vector<control::BackendTraits> traits;
  if (ranks == 1) traits.push_back(LoopbackTraits());
  if (transports.shm) traits.push_back(ShmTraits());
  if (transports.mpi) traits.push_back(MpiTraits());
  // Also on a rank without CUDA, as the traits are equal on all ranks: it has no CUDA tensor to submit.
  for (control::BackendTraits& each : traits) each = StagedTraits(std::move(each));
  if (transports.nccl) traits.insert(traits.begin(), NcclTraits());
  return traits;
}

StatusOr<std::vector<std::unique_ptr<Backend>>> MakeBackends(const SharedArea& area, const BackendOptions& options,
                                                             MpiResources mpi, HostResources for_nccl) {
  StatusOr<const KernelSet*> kernels = FindKernels(options.kernels);
  if (!kernels.ok()) return kernels.status();
  const bool memory = !area.data.empty();
  std::vector<std::unique_ptr<Backend>> backends;
  if (area.size == 1) backends.push_back(MakeLoopbackBackend(*kernels));
  if (memory) {
    HC_RETURN_IF_ERROR(ShmPort::Check(area));
    backends.push_back(MakeShmBackend(area, options, *kernels));
  }
  if (!mpi.local.data.empty()) HC_RETURN_IF_ERROR(ShmPort::Check(mpi.local));
  if (!mpi.all.empty()) backends.push_back(MakeMpiBackend(std::move(mpi), options, *kernels));
  if (options.devices != nullptr) {
    for (std::unique_ptr<Backend>& backend : backends)
      backend = MakeStagedBackend(std::move(backend), area.rank, area.size, options);
  }
  if (options.nccl.library != nullptr) {
    BackendOptions of_host = options;
    of_host.nccl = {};
    auto hosts = MakeBackends(for_nccl.area, of_host, std::move(for_nccl.mpi));
    if (!hosts.ok()) return hosts.status();
    std::unique_ptr<NcclLevels> levels;
    if (MpiResources& of_levels = for_nccl.levels; !of_levels.local.data.empty()) {
      HC_RETURN_IF_ERROR(ShmPort::Check(of_levels.local));
      levels = std::make_unique<NcclLevels>(std::move(of_levels), area.rank, options, *kernels);
    }
    backends.insert(backends.begin(),
                    MakeNcclBackend(std::move(hosts->front()), std::move(levels), area.rank, area.size, options));
  }
  return backends;
}

}  // namespace horocache::data
