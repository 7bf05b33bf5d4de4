// Operations on rows by NCCL: allgather, alltoall, gather, scatter and reducescatter.
//
// The ranks first count the rows by way of the host (row_counting.h). Then an allgather or reducescatter of equal parts
// is one call of NCCL; of unequal parts it is a broadcast or a reduce for each part. The others are messages between
// pairs of ranks, as in NCCL's own ncclAlltoAll, ncclGather and ncclScatter (2.28), which would need the same number of
// rows everywhere. The result is in memory of horocache's: its size was not known to the caller.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/backends/nccl/task.h"
#include "data/backends/row_counting.h"
#include "data/row_layout.h"

namespace horocache::data {
namespace {

class NcclRows : public NcclTask {
 public:
  NcclRows(NcclLink* link, Collective collective) : NcclTask(link, std::move(collective)) {}

  bool must_poll() const override { return counts() != nullptr ? counts()->must_poll() : NcclTask::must_poll(); }
  observe::Phase phase() const override { return counts() != nullptr ? counts()->phase() : NcclTask::phase(); }
  void AddWaitingFor(std::vector<int>* ranks) const override {
    if (counts() != nullptr) {
      counts()->AddWaitingFor(ranks);
    } else {
      NcclTask::AddWaitingFor(ranks);
    }
  }
  std::string Details() const override {
    if (link_.connects_messages()) return "\n  NCCL connects the ranks for messages";
    return counts() != nullptr ? "\n  the ranks tell each other their numbers of rows" : NcclTask::Details();
  }

 private:
  bool Prepare() override;
  const CollectiveTask* counts() const { return counting_.task(); }
  Status Plan();
  Status QueueAll() override;
  Status QueueCalls(const NcclReduction& reduction) override;
  Status AllgatherParts();
  Status ReducescatterParts(cuda::NcclOperation operation);
  Status ExchangeParts();
  size_t BytesOf(const RowPart& part) const { return static_cast<size_t>(part.count * element_bytes_); }
  const std::byte* Input(const RowPart& part) const {
    return collective_.segments[0].input + part.first * element_bytes_;
  }
  std::byte* Output(const RowPart& part) const {
    return (result_ == nullptr ? nullptr : result_->data()) + part.first * element_bytes_;
  }

  RowCounting counting_;
  std::vector<RowPart> sends_;  // by destination
  ReceivePlan plan_;
  bool even_ = false;              // all parts have equally many rows, and not none
  std::byte* gathered_ = nullptr;  // an even allgather's parts, where the result has them at other places
};

bool NcclRows::Prepare() {
  if (!counting_.ended()) {
    if (counts() == nullptr) counting_.Started(link_.StartOnHost(counting_.Part(collective_, total_)));
    if (!counting_.Test()) {
      progressed_ = counts()->progressed();
      return false;
    }
    progressed_ = true;
    if (!counting_.status().ok()) {
      Done(counting_.status());  // on all ranks
      return false;
    }
    if (const Status planned = Plan(); !planned.ok()) {
      link_.Break({planned.code(), collective_.Rank(link_.rank()) + ": " + planned.message()});
      return false;
    }
  }
  if (collective_.op == wire::Op::kAllgather || collective_.op == wire::Op::kReducescatter) return true;
  const StatusOr<bool> connected = link_.ConnectMessages(wire::HasRoot(collective_.op) ? collective_.root : -1);
  if (connected.ok()) return *connected;
  link_.Break({connected.status().code(), collective_.Rank(link_.rank()) + ": " + connected.status().message()});
  return false;
}

Status NcclRows::Plan() {
  HC_RETURN_IF_ERROR(counting_.Plan(collective_, link_.rank(), link_.ranks(), &sends_, &plan_));
  const std::vector<RowPart>& parts = collective_.op == wire::Op::kReducescatter ? sends_ : plan_.parts;
  even_ = !parts.empty() && parts[0].count > 0 &&
          std::ranges::all_of(parts, [&](const RowPart& part) { return part.count == parts[0].count; });
  return Status::Ok();
}

Status NcclRows::QueueAll() {
  cuda::Stream& stream = link_.stream();
  const int64_t bytes = plan_.elements * element_bytes_;
  if (bytes > 0) {
    StatusOr<std::shared_ptr<cuda::DeviceBuffer>> made = cuda::DeviceBuffer::Make(link_.device(), bytes, &stream);
    if (!made.ok()) return made.status();
    result_ = std::move(*made);
    for (const RowPart& gap : plan_.gaps ? GapsOf(plan_) : std::vector<RowPart>()) {
      HC_RETURN_IF_ERROR(stream.FillWithZeros(Output(gap), gap.count * element_bytes_));
    }
  }
  const bool placed = collective_.op == wire::Op::kAllgather && even_ && !collective_.receive_starts.empty();
  if (placed) {
    const int64_t all = plan_.parts[0].count * element_bytes_ * link_.ranks();
    StatusOr<std::byte*> scratch = link_.Scratch(all);
    if (!scratch.ok()) return scratch.status();
    gathered_ = *scratch;
  }
  HC_RETURN_IF_ERROR(QueueGroup(NcclReduction::Factor(collective_, link_.ranks())));
  if (placed) {
    const std::byte* from = gathered_;
    for (const RowPart& part : plan_.parts) {
      HC_RETURN_IF_ERROR(stream.CopyOnDevice(Output(part), from, part.count * element_bytes_));
      from += BytesOf(part);
    }
  }
  if (result_ == nullptr) return collective_.output->allocate(0).status();
  collective_.output->on_device = result_;
  return result_->NoteUses(&stream);
}

Status NcclRows::QueueCalls(const NcclReduction& reduction) {
  switch (collective_.op) {
    case wire::Op::kAllgather:
      return AllgatherParts();
    case wire::Op::kReducescatter:
      return ReducescatterParts(reduction.operation());
    default:
      return ExchangeParts();
  }
}

Status NcclRows::AllgatherParts() {
  const cuda::Nccl& nccl = link_.nccl();
  const cuda::NcclCommHandle comm = link_.comm();
  const cuda::StreamHandle stream = link_.stream().handle();
  const std::byte* const input = collective_.segments[0].input;
  if (even_) {
    std::byte* const output = gathered_ != nullptr ? gathered_ : result_->data();
    return nccl.Check(nccl.AllGather(input, output, BytesOf(plan_.parts[0]), cuda::kNcclUint8, comm, stream),
                      "ncclAllGather", comm);
  }
  for (int r = 0; r < link_.ranks(); ++r) {
    const RowPart& part = plan_.parts[static_cast<size_t>(r)];
    if (part.count == 0) continue;
    const std::byte* const from = r == link_.rank() ? input : Output(part);
    const cuda::NcclResult queued =
        nccl.Broadcast(from, Output(part), BytesOf(part), cuda::kNcclUint8, r, comm, stream);
    HC_RETURN_IF_ERROR(nccl.Check(queued, "ncclBroadcast", comm));
  }
  return Status::Ok();
}

Status NcclRows::ReducescatterParts(cuda::NcclOperation operation) {
  const cuda::Nccl& nccl = link_.nccl();
  const cuda::NcclCommHandle comm = link_.comm();
  const cuda::StreamHandle stream = link_.stream().handle();
  const cuda::NcclDataType type = *cuda::NcclTypeOf(collective_.dtype);
  std::byte* const output = result_ == nullptr ? nullptr : result_->data();
  if (even_) {
    const auto count = static_cast<size_t>(sends_[0].count);
    return nccl.Check(nccl.ReduceScatter(Input(sends_[0]), output, count, type, operation, comm, stream),
                      "ncclReduceScatter", comm);
  }
  for (int r = 0; r < link_.ranks(); ++r) {
    const RowPart& part = sends_[static_cast<size_t>(r)];
    if (part.count == 0) continue;
    const cuda::NcclResult queued = nccl.Reduce(Input(part), r == link_.rank() ? output : nullptr,
                                                static_cast<size_t>(part.count), type, operation, r, comm, stream);
    HC_RETURN_IF_ERROR(nccl.Check(queued, "ncclReduce", comm));
  }
  return Status::Ok();
}

Status NcclRows::ExchangeParts() {
  const cuda::Nccl& nccl = link_.nccl();
  const cuda::NcclCommHandle comm = link_.comm();
  const cuda::StreamHandle stream = link_.stream().handle();
  for (int peer = 0; peer < link_.ranks(); ++peer) {
    const RowPart& sent = sends_[static_cast<size_t>(peer)];
    if (sent.count > 0) {
      const cuda::NcclResult queued = nccl.Send(Input(sent), BytesOf(sent), cuda::kNcclUint8, peer, comm, stream);
      HC_RETURN_IF_ERROR(nccl.Check(queued, "ncclSend", comm));
    }
    if (plan_.parts.empty() || plan_.parts[static_cast<size_t>(peer)].count == 0) continue;
    const RowPart& received = plan_.parts[static_cast<size_t>(peer)];
    const cuda::NcclResult queued =
        nccl.Recv(Output(received), BytesOf(received), cuda::kNcclUint8, peer, comm, stream);
    HC_RETURN_IF_ERROR(nccl.Check(queued, "ncclRecv", comm));
  }
  return Status::Ok();
}

}  // namespace

std::unique_ptr<CollectiveTask> MakeNcclRows(NcclLink* link, Collective collective) {
  return std::unique_ptr<CollectiveTask>(new (link) NcclRows(link, std::move(collective)));
}

}  // namespace horocache::data
