// The backend of CUDA tensors by NCCL. Operations that NCCL does not do, or not with the results that users expect, go
// by way of the host, through a backend of its own.

#include <memory>
#include <string>
#include <utility>

#include "control/signature.h"
#include "data/backends/backends.h"
#include "data/backends/nccl/link.h"
#include "data/backends/nccl/task.h"
#include "data/validate.h"

namespace horocache::data {
namespace {

// Threads: the driving thread. Owns the backend for the host.
class NcclBackend : public Backend {
 public:
  NcclBackend(std::unique_ptr<Backend> host, int rank, int ranks, const BackendOptions& options)
      : deterministic_(options.deterministic), link_(std::move(host), rank, ranks, options) {}

  const control::BackendTraits& traits() const override { return traits_; }

  Status Supports(const Collective& collective) const override {
    if (collective.op == wire::Op::kBarrier) return link_.host().Supports(collective);
    HC_RETURN_IF_ERROR(CheckCollective(collective, traits_, link_.ranks()));
    return RunsByNccl(collective) ? Status::Ok() : link_.host().Supports(collective);
  }

  std::unique_ptr<CollectiveTask> Start(Collective collective) override {
    if (!RunsByNccl(collective)) return link_.host().Start(std::move(collective));
    return control::Fuses(collective.op) ? MakeNcclFused(&link_, std::move(collective))
                                         : MakeNcclRows(&link_, std::move(collective));
  }

  const DataCounters& counters() const override {
    counters_ = link_.host().counters();
    counters_.operations += link_.counters.operations - link_.on_host().operations;
    counters_.bytes_copied += link_.counters.bytes_copied;
    counters_.payload_bytes += link_.counters.payload_bytes - link_.on_host().payload_bytes;
    return counters_;
  }

  Status broken() const override { return link_.broken().ok() ? link_.host().broken() : link_.broken(); }

  void Abandon(const Status& why) override { link_.Break(why); }
  Status AwaitDevices() override {
    link_.AwaitQuiet();
    return link_.given_up();
  }

 private:
  bool RunsByNccl(const Collective& collective) const {
    return (link_.by_nccl() || !link_.falls_back()) && NcclTask::Runs(collective, link_.ranks(), deterministic_);
  }

  const bool deterministic_;
  const control::BackendTraits traits_ = NcclTraits();
  NcclLink link_;
  mutable DataCounters counters_;
};

}  // namespace

control::BackendTraits NcclTraits() {
  control::BackendTraits traits;
  traits.name = "nccl";
  traits.ops = AllCollectives();
  traits.device_classes = 1u << static_cast<int>(wire::DeviceClass::kCuda);
  return traits;
}

std::unique_ptr<Backend> MakeNcclBackend(std::unique_ptr<Backend> host, int rank, int ranks,
                                         const BackendOptions& options) {
  return std::make_unique<NcclBackend>(std::move(host), rank, ranks, options);
}

}  // namespace horocache::data
