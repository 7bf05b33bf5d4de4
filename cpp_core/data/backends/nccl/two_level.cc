#include "data/backends/nccl/two_level.h"

#include <string>
#include <utility>

#include "data/backends/backends.h"
#include "data/backends/mpi/task.h"
#include "data/backends/nccl/reduction.h"

namespace horocache::data {

class NcclTwoLevel : public CollectiveTask {
 public:
  NcclTwoLevel(NcclLevels* levels, Collective collective);

  bool Test() override;
  Status status() const override { return status_; }
  bool progressed() const override { return progressed_; }
  // For what comes behind it, the operation is as good as done once the broadcast is queued.
  bool launched() const override { return broadcast_ != nullptr && broadcast_->launched(); }
  std::shared_ptr<const cuda::Event> on_device() const override { return broadcast_->on_device(); }
  int queued() const override { return reduce_->queued() + broadcast_->queued(); }
  bool must_poll() const override { return current().must_poll(); }
  observe::Phase phase() const override { return current().phase(); }
  void AddWaitingFor(std::vector<int>* ranks) const override;
  std::string Details() const override { return current().Details(); }
  std::vector<Segment> TakeSegments() override { return std::move(collective_.segments); }

 private:
  Collective Part(wire::Op op) const;
  void StartReduce();
  void StartBetween();
  void StartBroadcast();
  // Tests the task. True if it has failed, and with it the operation.
  bool Fails(CollectiveTask* task, bool* ended);
  // The same for the part between the hosts, which it starts.
  bool FailsBetween();
  CollectiveTask& current() const {
    if (!reduced_) return *reduce_;  // this rank's tensor may not be there yet
    return broadcast_ != nullptr ? *broadcast_ : between_ != nullptr ? *between_ : *reduce_;
  }

  NcclLevels& levels_;
  Collective collective_;
  std::unique_ptr<CollectiveTask> reduce_, between_, broadcast_;
  bool reduced_ = false, exchanged_ = false, spread_ = false;  // they have ended
  bool progressed_ = false;
  Status status_;
};

NcclTwoLevel::NcclTwoLevel(NcclLevels* levels, Collective collective)
    : levels_(*levels), collective_(std::move(collective)) {
  StartReduce();
}

bool NcclTwoLevel::Test() {
  progressed_ = false;
  if (!reduced_ && Fails(reduce_.get(), &reduced_)) return true;
  if (levels_.leads()) {
    if (!reduced_) return false;
    if (!exchanged_ && FailsBetween()) return true;
    if (!exchanged_) return false;
  } else if (!reduced_ && !reduce_->launched()) {
    return false;
  }
  if (broadcast_ == nullptr) StartBroadcast();
  if (!spread_ && Fails(broadcast_.get(), &spread_)) return true;
  return reduced_ && spread_;
}

bool NcclTwoLevel::FailsBetween() {
  if (between_ == nullptr) {
    // Behind a failed operation, this one would meet that one's part on other hosts.
    status_ = levels_.broken();
    if (!status_.ok()) return true;
    StartBetween();
  }
  return Fails(between_.get(), &exchanged_);
}

bool NcclTwoLevel::Fails(CollectiveTask* task, bool* ended) {
  if (!task->Test()) {
    progressed_ |= task->progressed();
    return false;
  }
  *ended = true;
  progressed_ = true;
  status_ = task->status();
  if (status_.ok()) return false;
  // Ranks of other hosts do not see it, and wait.
  if (levels_.broken_.ok()) levels_.broken_ = status_;
  return true;
}

Collective NcclTwoLevel::Part(wire::Op op) const {
  Collective part;
  part.op = op;
  part.dtype = collective_.dtype;
  part.device_class = collective_.device_class;
  part.device = collective_.device;
  part.sequence = collective_.sequence;
  part.segments = collective_.segments;
  part.names = &levels_.hosts_.local_names;
  return part;
}

void NcclTwoLevel::StartReduce() {
  // In a reduce, NCCL may multiply 16-bit floats by a factor of their own type. In an allreduce horocache does, in
  // float32; the broadcast overwrites the results.
  const bool everywhere = ScalesFirst(collective_) && NcclReduction::Factor(collective_, levels_.ranks()) != 1.0;
  Collective part = Part(everywhere ? wire::Op::kAllreduce : wire::Op::kReduce);
  part.ready = collective_.ready;
  ReduceInside(collective_, levels_.ranks(), &part);
  if (!everywhere) {
    part.root = 0;
    for (Segment& segment : part.segments) {
      if (!levels_.leads()) segment.output = nullptr;
    }
  }
  reduce_ = levels_.inside_->Start(std::move(part));
}

void NcclTwoLevel::StartBetween() {
  Collective part = Part(wire::Op::kAllreduce);
  part.names = &levels_.hosts_.cross_names;
  ReduceBetween(collective_, levels_.ranks(), &part);
  for (Segment& segment : part.segments) segment.input = segment.output;
  between_ = levels_.between_->Start(std::move(part));
}

void NcclTwoLevel::StartBroadcast() {
  Collective part = Part(wire::Op::kBroadcast);
  part.root = 0;
  for (Segment& segment : part.segments) segment.input = segment.output;
  broadcast_ = levels_.inside_->Start(std::move(part));
}

void NcclTwoLevel::AddWaitingFor(std::vector<int>* ranks) const {
  const std::vector<int>& members = &current() == between_.get() ? levels_.leaders_ : levels_.here_;
  for (const int rank : current().WaitingFor()) ranks->push_back(members[static_cast<size_t>(rank)]);
}

// ---- the levels

NcclLevels::NcclLevels(MpiResources&& resources, int rank, const BackendOptions& options, const KernelSet* kernels)
    : deterministic_(options.deterministic), hosts_(std::move(resources), rank, options, kernels) {
  const int host = hosts_.host(rank);
  for (size_t other = 0; other < hosts_.host_of.size(); ++other) {
    if (hosts_.local_of[other] == 0) leaders_.push_back(static_cast<int>(other));
    if (hosts_.host_of[other] == host) here_.push_back(static_cast<int>(other));
  }
  BackendOptions of_host = options;
  of_host.nccl = {};
  BackendOptions of_nccl = options;
  of_nccl.nccl.window_bytes = 0;  // NCCL uses none for what it does in two levels
  if (!of_nccl.nccl.name.empty()) of_nccl.nccl.name += ", host " + std::to_string(host);
  const int local_rank = hosts_.local_of[static_cast<size_t>(rank)];
  const auto local_size = static_cast<int>(here_.size());
  auto local = MakeStagedBackend(std::move(hosts_.local), local_rank, local_size, of_host);
  inside_ = MakeNcclBackend(std::move(local), nullptr, local_rank, local_size, of_nccl);
  if (hosts_.leads())
    between_ = MakeStagedBackend(std::move(hosts_.cross), host, static_cast<int>(leaders_.size()), of_host);
}

Status NcclLevels::Supports(const Collective& collective) const {
  if (!deterministic_ || !(IsFloat(collective.dtype) || IsComplex(collective.dtype))) return Status::Ok();
  return UnsupportedError(
      "nccl/twolevel does not add in rank order, so that it has other bits than "
      "HOROCACHE_DETERMINISTIC=1 asks for; use mpi");
}

std::unique_ptr<CollectiveTask> NcclLevels::Start(Collective collective) {
  ++counters_.operations;
  for (const Segment& segment : collective.segments)
    counters_.payload_bytes += static_cast<uint64_t>(segment.count) * DTypeBytes(collective.dtype);
  return std::make_unique<NcclTwoLevel>(this, std::move(collective));
}

void NcclLevels::AddTo(DataCounters* counters) const {
  counters->operations += counters_.operations;
  counters->payload_bytes += counters_.payload_bytes;
  counters->bytes_copied += inside_->counters().bytes_copied;
  counters->bytes_folded += inside_->counters().bytes_folded;
  if (!leads()) return;
  counters->bytes_copied += between_->counters().bytes_copied;
  counters->bytes_folded += between_->counters().bytes_folded;
}

Status NcclLevels::broken() const {
  if (!broken_.ok()) return broken_;
  return inside_->broken().ok() && leads() ? between_->broken() : inside_->broken();
}

}  // namespace horocache::data
