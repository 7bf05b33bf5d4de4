// The one list of backends. A backend's index in it is its number in wire::Choice, so the order must not depend on
// anything that may differ between ranks.

#include <memory>
#include <utility>
#include <vector>

#include "data/backend.h"
#include "data/backends/backends.h"
#include "data/backends/shm/tile_slots.h"

namespace horocache::data {
namespace {

// The fake device's host backend gets 1 / kFakeDeviceShare of each data area for itself: two backends must not count
// tiles in the same memory.
constexpr size_t kFakeDeviceShare = 8;

}  // namespace

SharedArea PartOf(const SharedArea& area, size_t begin, size_t bytes) {
  SharedArea part = area;
  for (std::byte*& base : part.data) base += begin;
  part.data_bytes = bytes;
  return part;
}

std::vector<control::BackendTraits> TraitsOf(int ranks, const BackendOptions& options, Transports means) {
  std::vector<control::BackendTraits> traits;
  if (means.memory) traits.push_back(ShmTraits());
  if (means.mpi) traits.push_back(MpiTraits());
  if (ranks == 1) traits.push_back(LoopbackTraits());
  if (options.fakedevice_delay_ns >= 0 && (means.memory || ranks == 1)) traits.push_back(FakeDeviceTraits());
  return traits;
}

StatusOr<std::vector<std::unique_ptr<Backend>>> MakeBackends(const SharedArea& area, const BackendOptions& options,
                                                             MpiResources mpi) {
  StatusOr<const KernelSet*> kernels = FindKernels(options.kernels);
  if (!kernels.ok()) return kernels.status();
  const bool memory = !area.data.empty();
  const bool fake = options.fakedevice_delay_ns >= 0 && (memory || area.size == 1);
  const size_t staged = fake ? area.data_bytes / kFakeDeviceShare / 64 * 64 : 0;
  std::vector<std::unique_ptr<Backend>> backends;
  if (memory) {
    const SharedArea main = PartOf(area, 0, area.data_bytes - staged);
    HC_RETURN_IF_ERROR(ShmPort::Check(main));
    backends.push_back(MakeShmBackend(main, options, *kernels));
  }
  if (!mpi.local.data.empty()) HC_RETURN_IF_ERROR(ShmPort::Check(mpi.local));
  if (!mpi.all.empty()) backends.push_back(MakeMpiBackend(std::move(mpi), options, *kernels));
  if (area.size == 1) backends.push_back(MakeLoopbackBackend(*kernels));
  if (!fake) return backends;
  std::unique_ptr<Backend> staging;
  if (area.size == 1) {
    staging = MakeLoopbackBackend(*kernels);
  } else {
    const SharedArea rest = PartOf(area, area.data_bytes - staged, staged);
    HC_RETURN_IF_ERROR(ShmPort::Check(rest));
    staging = MakeShmBackend(rest, options, *kernels);
  }
  auto device = std::make_shared<FakeDevice>(options.fakedevice_delay_ns, [ring = area.ring, rank = area.rank] {
    if (ring) ring(rank);
  });
  backends.push_back(MakeFakeDeviceBackend(std::move(staging), area.rank, area.size, std::move(device)));
  return backends;
}

}  // namespace horocache::data
