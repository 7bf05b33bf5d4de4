// A backend for memory of the host that runs its collectives on CUDA tensors, too.

#include <memory>
#include <utility>

#include "control/signature.h"
#include "data/backends/backends.h"
#include "data/backends/staged/task.h"
#include "data/validate.h"

namespace horocache::data {
namespace {

// Threads: the driving thread. Owns the host's backend.
class StagedBackend : public Backend {
 public:
  StagedBackend(std::unique_ptr<Backend> host, int rank, int ranks, const BackendOptions& options)
      : rank_(rank),
        ranks_(ranks),
        traits_(StagedTraits(host->traits())),
        queue_(std::move(host), options.devices, options.staging_tile_bytes) {}

  const control::BackendTraits& traits() const override { return traits_; }

  Status Supports(const Collective& collective) const override {
    if (collective.device_class != wire::DeviceClass::kCuda) return queue_.host().Supports(collective);
    HC_RETURN_IF_ERROR(CheckCollective(collective, traits_, ranks_));
    Collective on_host = collective;
    on_host.device_class = wire::DeviceClass::kCpu;
    return queue_.host().Supports(on_host);
  }

  std::unique_ptr<CollectiveTask> Start(Collective collective) override {
    if (collective.device_class != wire::DeviceClass::kCuda) {
      if (queue_.idle() && queue_.broken().ok()) return queue_.host().Start(std::move(collective));
      return MakeHostTask(&queue_, std::move(collective), rank_, ranks_);
    }
    return control::Fuses(collective.op) ? MakeStagedTiles(&queue_, std::move(collective), rank_, ranks_)
                                         : MakeStagedRows(&queue_, std::move(collective), rank_, ranks_);
  }

  const DataCounters& counters() const override {
    const DataCounters& host = queue_.host().counters();
    counters_ = host;
    counters_.operations += queue_.counters.operations - queue_.parts.operations;
    counters_.payload_bytes += queue_.counters.payload_bytes - queue_.parts.payload_bytes;
    counters_.bytes_copied += queue_.counters.bytes_copied;
    return counters_;
  }

  Status broken() const override { return queue_.broken().ok() ? queue_.host().broken() : queue_.broken(); }

 private:
  const int rank_, ranks_;
  const control::BackendTraits traits_;
  StagedQueue queue_;
  mutable DataCounters counters_;
};

}  // namespace

control::BackendTraits StagedTraits(control::BackendTraits host) {
  host.device_classes |= 1u << static_cast<int>(wire::DeviceClass::kCuda);
  return host;
}

std::unique_ptr<Backend> MakeStagedBackend(std::unique_ptr<Backend> host, int rank, int ranks,
                                           const BackendOptions& options) {
  return std::make_unique<StagedBackend>(std::move(host), rank, ranks, options);
}

}  // namespace horocache::data
