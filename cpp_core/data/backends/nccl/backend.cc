// The backend of CUDA tensors by NCCL. Operations that NCCL does not do, or not with the results that users expect, go
// by way of the host, through a backend of its own.

#include <memory>
#include <string>
#include <utility>

#include "control/signature.h"
#include "data/backends/backends.h"
#include "data/backends/nccl/link.h"
#include "data/backends/nccl/task.h"
#include "data/backends/nccl/two_level.h"
#include "data/validate.h"

namespace horocache::data {
namespace {

constexpr uint8_t kByDefault = 0, kInTwoLevels = 1;  // indices in NcclTraits().algorithms

// Threads: the driving thread. Owns the backend for the host.
class NcclBackend : public Backend {
 public:
  NcclBackend(std::unique_ptr<Backend> host, std::unique_ptr<NcclLevels> levels, int rank, int ranks,
              const BackendOptions& options)
      : deterministic_(options.deterministic),
        link_(std::move(host), rank, ranks, options),
        levels_(std::move(levels)) {}

  const control::BackendTraits& traits() const override { return traits_; }

  Status Supports(const Collective& collective) const override {
    if (collective.algorithm == kInTwoLevels && collective.op != wire::Op::kAllreduce) {
      return UnsupportedError("nccl/twolevel runs allreduce, not " + std::string(wire::OpName(collective.op)));
    }
    if (collective.op == wire::Op::kBarrier) return link_.host().Supports(collective);
    HC_RETURN_IF_ERROR(CheckCollective(collective, traits_, link_.ranks()));
    if (InTwoLevels(collective)) return levels_->Supports(collective);
    Collective by_default = collective;
    by_default.algorithm = kByDefault;
    return RunsByNccl(collective) ? Status::Ok() : link_.host().Supports(by_default);
  }

  std::unique_ptr<CollectiveTask> Start(Collective collective) override {
    if (InTwoLevels(collective)) return levels_->Start(std::move(collective));
    collective.algorithm = kByDefault;
    if (!RunsByNccl(collective)) return link_.host().Start(std::move(collective));
    return control::Fuses(collective.op) ? MakeNcclFused(&link_, std::move(collective))
                                         : MakeNcclRows(&link_, std::move(collective));
  }

  const DataCounters& counters() const override {
    counters_ = link_.host().counters();
    counters_.operations += link_.counters.operations - link_.on_host().operations;
    counters_.bytes_copied += link_.counters.bytes_copied;
    counters_.payload_bytes += link_.counters.payload_bytes - link_.on_host().payload_bytes;
    if (levels_ != nullptr) levels_->AddTo(&counters_);
    return counters_;
  }

  Status broken() const override {
    if (!link_.broken().ok()) return link_.broken();
    if (levels_ != nullptr) HC_RETURN_IF_ERROR(levels_->broken());
    return link_.host().broken();
  }

  void Abandon(const Status& why) override {
    link_.Break(why);
    if (levels_ != nullptr) levels_->Abandon(why);
  }
  Status AwaitDevices() override {
    link_.AwaitQuiet();
    const Status inside = levels_ != nullptr ? levels_->AwaitDevices() : Status::Ok();
    return link_.given_up().ok() ? inside : link_.given_up();
  }

 private:
  // Ranks that have joined would have no part in the reductions inside their hosts. Without levels there is one host.
  bool InTwoLevels(const Collective& collective) const {
    return collective.algorithm == kInTwoLevels && levels_ != nullptr && collective.joined.empty();
  }
  bool RunsByNccl(const Collective& collective) const {
    return (link_.by_nccl() || !link_.falls_back()) && NcclTask::Runs(collective, link_.ranks(), deterministic_);
  }

  const bool deterministic_;
  const control::BackendTraits traits_ = NcclTraits();
  NcclLink link_;
  const std::unique_ptr<NcclLevels> levels_;  // null: the ranks are on one host, or MPI does not connect them
  mutable DataCounters counters_;
};

}  // namespace

control::BackendTraits NcclTraits() {
  control::BackendTraits traits;
  traits.name = "nccl";
  traits.ops = AllCollectives();
  traits.device_classes = 1u << static_cast<int>(wire::DeviceClass::kCuda);
  traits.algorithms = {"auto", "twolevel"};
  return traits;
}

std::unique_ptr<Backend> MakeNcclBackend(std::unique_ptr<Backend> host, std::unique_ptr<NcclLevels> levels, int rank,
                                         int ranks, const BackendOptions& options) {
  return std::make_unique<NcclBackend>(std::move(host), std::move(levels), rank, ranks, options);
}

}  // namespace horocache::data
