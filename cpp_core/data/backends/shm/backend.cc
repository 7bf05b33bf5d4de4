// The backend for ranks of one host. It uses shared memory without locks; its only system call wakes a sleeping rank.

#include <memory>
#include <string>
#include <utility>

#include "data/backends/backends.h"
#include "data/backends/shm/algorithms.h"
#include "data/backends/shm/task.h"
#include "data/validate.h"

namespace horocache::data {
namespace {

// Threads: the driving thread. Owns the queue and this rank's view of the area; the memory belongs to the arena.
class ShmBackend : public Backend {
 public:
  ShmBackend(const SharedArea& area, const BackendOptions& options, const KernelSet* kernels)
      : queue_(area, options, kernels) {}

  const control::BackendTraits& traits() const override { return traits_; }

  Status Supports(const Collective& collective) const override {
    HC_RETURN_IF_ERROR(CheckCollective(collective, traits_, queue_.port.size()));
    const bool folds = collective.op == wire::Op::kAllreduce || collective.op == wire::Op::kReduce;
    if (collective.algorithm == 0 || folds) return Status::Ok();
    return {StatusCode::kUnsupported, "shm/" + traits_.algorithms[collective.algorithm] +
                                          " runs allreduce and reduce; " + std::string(wire::OpName(collective.op)) +
                                          " has one way alone, which is shm"};
  }

  std::unique_ptr<CollectiveTask> Start(Collective collective) override {
    switch (collective.op) {
      case wire::Op::kAllreduce:
      case wire::Op::kReduce:
        return MakeShmFold(&queue_, std::move(collective));
      case wire::Op::kReducescatter:
        return MakeShmReducescatter(&queue_, std::move(collective));
      default:
        return MakeShmMove(&queue_, std::move(collective));
    }
  }

  const DataCounters& counters() const override { return queue_.counters; }
  Status broken() const override { return queue_.broken(); }

 private:
  const control::BackendTraits traits_ = ShmTraits();
  ShmQueue queue_;
};

}  // namespace

control::BackendTraits ShmTraits() {
  return {.name = "shm",
          .ops = AllCollectives(),
          .device_classes = 1u << static_cast<int>(wire::DeviceClass::kCpu),
          .algorithms = ShmAlgorithmNames(),
          .plain_fold = true};
}

std::unique_ptr<Backend> MakeShmBackend(const SharedArea& area, const BackendOptions& options,
                                        const KernelSet* kernels) {
  return std::make_unique<ShmBackend>(area, options, kernels);
}

}  // namespace horocache::data
