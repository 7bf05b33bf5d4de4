// The backend that runs collectives over MPI, for ranks anywhere.

#include <memory>
#include <utility>

#include "data/backends/backends.h"
#include "data/backends/mpi/mpi_operation.h"
#include "data/check.h"

namespace horocache::data {
namespace {

// By their places in MpiTraits().algorithms.
enum Algorithm : uint8_t { kAuto, kNative, kFold };

// Role: lanes. Owns the queue with the lane's communicator.
class MpiBackend : public Backend {
 public:
  MpiBackend(net::Communicator comm, const BackendOptions& options, const KernelSet* kernels)
      : deterministic_(options.deterministic), queue_(std::move(comm), options, kernels) {}

  const control::BackendTraits& traits() const override { return traits_; }

  Status Supports(const Collective& collective) const override {
    return CheckCollective(collective, traits_, queue_.comm.size());
  }

  std::unique_ptr<Operation> Start(Collective collective) override {
    switch (collective.op) {
      case wire::Op::kAllreduce:
      case wire::Op::kReduce:
        if (Folds(collective)) return MakeMpiFold(&queue_, std::move(collective));
        return MakeMpiPieces(&queue_, std::move(collective));
      case wire::Op::kBroadcast:
        return MakeMpiPieces(&queue_, std::move(collective));
      case wire::Op::kReducescatter:
        return MakeMpiFold(&queue_, std::move(collective));
      default:
        return MakeMpiExchange(&queue_, std::move(collective));
    }
  }

  const DataCounters& counters() const override { return queue_.counters; }

 private:
  bool Folds(const Collective& collective) const {
    return collective.algorithm == kFold || (collective.algorithm == kAuto && deterministic_);
  }

  const control::BackendTraits traits_ = MpiTraits();
  const bool deterministic_;
  MpiQueue queue_;
};

}  // namespace

control::BackendTraits MpiTraits() {
  return {.name = "mpi",
          .ops = AllCollectives(),
          .device_classes = 1u << static_cast<int>(wire::DeviceClass::kCpu),
          .algorithms = {"auto", "native", "fold"}};
}

std::unique_ptr<Backend> MakeMpiBackend(net::Communicator comm, const BackendOptions& options,
                                        const KernelSet* kernels) {
  return std::make_unique<MpiBackend>(std::move(comm), options, kernels);
}

}  // namespace horocache::data
