// The backend that runs collectives over MPI, for ranks on any hosts.

#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "data/backends/backends.h"
#include "data/backends/mpi/task.h"
#include "data/validate.h"

namespace horocache::data {
namespace {

// Indices in MpiTraits().algorithms.
enum Algorithm : uint8_t { kAuto, kNative, kFold, kTwoLevel };

// Size in bytes from which kFold beats the MPI libraries' non-blocking allreduce, which is often far slower than the
// blocking one; see docs/decisions/0008-mpi-by-dlopen.md. Between hosts it depends on the size of a slice, so it is
// given per rank.
constexpr int64_t kFoldBytesOnOneHost = 1 << 20, kFoldBytesOfRank = 16 << 10;
// Size in bytes from which two levels beat both, if a host has several ranks.
constexpr int64_t kTwoLevelBytes = 64 << 10;
constexpr int64_t kTwoLevelAllgatherBytes = 256 << 10, kNeverBytes = std::numeric_limits<int64_t>::max();

bool Reduces(wire::Op op) { return op == wire::Op::kAllreduce || op == wire::Op::kReduce; }

bool Rounds(DType dtype) { return IsFloat(dtype) || IsComplex(dtype); }

int64_t BytesOf(const Collective& collective) {
  int64_t count = 0;
  for (const Segment& segment : collective.segments) count += segment.count;
  return count * static_cast<int64_t>(DTypeBytes(collective.dtype));
}

// Threads: the driving thread. Owns the queue with the lane's communicators.
class MpiBackend : public Backend {
 public:
  MpiBackend(MpiResources resources, const BackendOptions& options, const KernelSet* kernels)
      : deterministic_(options.deterministic), queue_(&resources, options, kernels) {
    if (!resources.local.data.empty())
      queue_.levels = std::make_unique<TwoLevels>(std::move(resources), queue_.comm.rank(), options, kernels);
  }

  const control::BackendTraits& traits() const override { return traits_; }
  Status Supports(const Collective& collective) const override;
  std::unique_ptr<CollectiveTask> Start(Collective collective) override;
  const DataCounters& counters() const override { return queue_.counters; }
  Status broken() const override { return queue_.broken(); }

 private:
  Status SupportsTwoLevels(const Collective& collective) const;
  Status KeepsOrder(const Collective& collective) const;
  uint8_t AlgorithmOf(const Collective& collective) const;
  bool LevelsFit(const Collective& collective) const;
  int64_t LevelsFromBytes(const Collective& collective) const;
  bool NeedsFold(const Collective& collective) const;

  const control::BackendTraits traits_ = MpiTraits();
  const bool deterministic_;
  MpiQueue queue_;
  const int64_t fold_bytes_ = queue_.OneHost() ? kFoldBytesOnOneHost : kFoldBytesOfRank * queue_.comm.size();
};

Status MpiBackend::Supports(const Collective& collective) const {
  HC_RETURN_IF_ERROR(CheckCollective(collective, traits_, queue_.comm.size()));
  const std::string op(wire::OpName(collective.op));
  if (collective.algorithm == kTwoLevel) return SupportsTwoLevels(collective);
  if (collective.algorithm == kFold && !wire::HasReduceOp(collective.op)) {
    return {StatusCode::kUnsupported, "mpi/fold reduces; " + op + " does not"};
  }
  if (collective.algorithm == kNative && wire::HasReduceOp(collective.op) && !Reduces(collective.op)) {
    return {StatusCode::kUnsupported, "mpi/native has no " + op + "; mpi/fold has"};
  }
  return collective.algorithm == kNative ? KeepsOrder(collective) : Status::Ok();
}

Status MpiBackend::SupportsTwoLevels(const Collective& collective) const {
  const std::string op(wire::OpName(collective.op));
  if (collective.op != wire::Op::kAllreduce && collective.op != wire::Op::kBroadcast &&
      collective.op != wire::Op::kAllgather) {
    return {StatusCode::kUnsupported, "mpi/twolevel runs allreduce, allgather and broadcast, not " + op};
  }
  return KeepsOrder(collective);
}

// For the algorithms that do not reduce in rank order: kUnsupported if the job is deterministic and the order changes
// the bits of the result.
Status MpiBackend::KeepsOrder(const Collective& collective) const {
  if (!deterministic_ || !Rounds(collective.dtype) || !Reduces(collective.op)) return Status::Ok();
  return {StatusCode::kUnsupported, "mpi/" + traits_.algorithms[collective.algorithm] +
                                        " does not add in rank order, so " + std::string(wire::OpName(collective.op)) +
                                        " of " + std::string(DTypeName(collective.dtype)) +
                                        " has other bits than HOROCACHE_DETERMINISTIC=1 asks for; use mpi/fold"};
}

// True if the collective can run in two levels. On one host there is only one level, joined ranks have no data to
// reduce on their host, and an allgather requires that each host's rows are contiguous in the result. In these cases
// the flat algorithms run instead.
bool MpiBackend::LevelsFit(const Collective& collective) const {
  return queue_.levels != nullptr && collective.joined.empty() &&
         (collective.op != wire::Op::kAllgather || queue_.levels->contiguous);
}

// Size in bytes from which the collective runs in two levels. Equal on all ranks.
int64_t MpiBackend::LevelsFromBytes(const Collective& collective) const {
  if (!LevelsFit(collective)) return kNeverBytes;
  if (collective.algorithm == kTwoLevel) return 0;
  if (collective.algorithm != kAuto || !queue_.levels->has_multi_rank_host || NeedsFold(collective)) return kNeverBytes;
  if (collective.op == wire::Op::kAllreduce || collective.op == wire::Op::kBroadcast) return kTwoLevelBytes;
  return collective.op == wire::Op::kAllgather ? kTwoLevelAllgatherBytes : kNeverBytes;
}

// True if only kFold gives the required bits: 16-bit floats must be summed in float32 and rounded once, and a
// deterministic job must reduce in rank order.
bool MpiBackend::NeedsFold(const Collective& collective) const {
  if (!Reduces(collective.op)) return false;
  return Is16BitFloat(collective.dtype) || (deterministic_ && Rounds(collective.dtype));
}

// The algorithm of the collective; equal on all ranks. An allgather chooses between one and two levels later, in
// MpiExchange: its size is known only after the ranks have exchanged their row counts.
uint8_t MpiBackend::AlgorithmOf(const Collective& collective) const {
  const int64_t bytes = BytesOf(collective);
  if (collective.op != wire::Op::kAllgather && bytes >= LevelsFromBytes(collective)) return kTwoLevel;
  if (!Reduces(collective.op) || collective.algorithm == kNative) return kNative;
  const bool asked = collective.algorithm == kFold || deterministic_;
  return asked || NeedsFold(collective) || bytes >= fold_bytes_ ? kFold : kNative;
}

std::unique_ptr<CollectiveTask> MpiBackend::Start(Collective collective) {
  const uint8_t algorithm = AlgorithmOf(collective);
  if (collective.op == wire::Op::kReducescatter) return MakeMpiReducescatter(&queue_, std::move(collective));
  if (algorithm == kFold) return MakeMpiAllFold(&queue_, std::move(collective));
  switch (collective.op) {
    case wire::Op::kAllreduce:
    case wire::Op::kReduce:
    case wire::Op::kBroadcast:
      if (algorithm == kTwoLevel) return MakeTwoLevel(&queue_, std::move(collective));
      return MakeMpiPieces(&queue_, std::move(collective));
    default: {
      const int64_t levels_from_bytes = LevelsFromBytes(collective);
      return MakeMpiExchange(&queue_, std::move(collective), levels_from_bytes);
    }
  }
}

}  // namespace

control::BackendTraits MpiTraits() {
  return {.name = "mpi",
          .ops = AllCollectives(),
          .device_classes = 1u << static_cast<int>(wire::DeviceClass::kCpu),
          .algorithms = {"auto", "native", "fold", "twolevel"}};
}

std::unique_ptr<Backend> MakeMpiBackend(MpiResources resources, const BackendOptions& options,
                                        const KernelSet* kernels) {
  return std::make_unique<MpiBackend>(std::move(resources), options, kernels);
}

}  // namespace horocache::data
