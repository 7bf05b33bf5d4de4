#include "data/backends/nccl/task.h"

#include <new>
#include <utility>

#include "control/signature.h"

namespace horocache::data {
namespace {

constexpr unsigned kTestsPerQuestion = 32;  // tests of an operation for each question to NCCL about errors

}  // namespace

bool NcclTask::Runs(const Collective& collective, int ranks, bool deterministic) {
  // A rank that has joined may not even have a device.
  if (!collective.joined.empty()) return false;
  switch (collective.op) {
    case wire::Op::kBroadcast:
    case wire::Op::kAllgather:
    case wire::Op::kAlltoall:
    case wire::Op::kGather:
    case wire::Op::kScatter:
      return true;
    case wire::Op::kAllreduce:
    case wire::Op::kReduce:
    case wire::Op::kReducescatter:
      return NcclReduction::Computes(collective, ranks, deterministic);
    default:
      return false;
  }
}

NcclTask::NcclTask(NcclLink* link, Collective collective)
    : link_(*link),
      collective_(std::move(collective)),
      element_bytes_(static_cast<int64_t>(DTypeBytes(collective_.dtype))) {
  for (const Segment& segment : collective_.segments) total_ += segment.count;
}

NcclTask::~NcclTask() {
  if (!launched_ || done_) return;
  try {
    link_.Break({StatusCode::kAborted, "an operation that NCCL ran was given up"});
    link_.AwaitQuiet();
  } catch (const std::bad_alloc&) {
    link_.Break(NoMemoryError());  // needs no memory
  }
  GiveUpResult();
}

bool NcclTask::Test() {
  progressed_ = false;
  if (on_host_ != nullptr) {
    const bool done = on_host_->Test();
    progressed_ = done || on_host_->progressed();
    return done;
  }
  if (!link_.broken().ok()) return EndBroken();
  return launched_ ? TestEnd() : Begin();
}

bool NcclTask::Begin() {
  if (total_ == 0 && control::Fuses(collective_.op)) return Done(Status::Ok());  // on all ranks
  if (!link_.Connect(collective_.device, collective_.names)) {
    progressed_ = link_.connector()->progressed();
    return false;
  }
  if (!link_.broken().ok()) return EndBroken();
  if (!link_.by_nccl()) {
    if (!link_.falls_back()) return Done(link_.refused());
    on_host_ = link_.host().Start(std::move(collective_));
    return false;
  }
  if (!Prepare()) return done_;
  progressed_ = true;
  const Status launched = Launch();
  if (launched.ok()) return false;
  link_.Break({launched.code(), collective_.Rank(link_.rank()) + ": " + launched.message()});
  return EndBroken();
}

Status NcclTask::Launch() {
  const cuda::Device::Scope scope(*link_.device());
  HC_RETURN_IF_ERROR(scope.status());
  const uint64_t entries = link_.stream().entries();
  if (collective_.ready != nullptr) {
    HC_RETURN_IF_ERROR(collective_.ready->HoldBack(&link_.stream(), &waits_for_tensors_));
  }
  if (waits_for_tensors_) {
    StatusOr<cuda::Event> made = cuda::Event::Make(link_.device());
    if (!made.ok()) return made.status();
    started_ = std::move(*made);
    HC_RETURN_IF_ERROR(link_.stream().Record(&started_));
  }
  StatusOr<cuda::Event> made = cuda::Event::Make(link_.device());
  if (!made.ok()) return made.status();
  ended_ = std::make_shared<cuda::Event>(std::move(*made));
  // From here on the device may use the tensors, also after an error.
  launched_ = true;
  HC_RETURN_IF_ERROR(QueueAll());
  ++link_.counters.operations;
  link_.counters.payload_bytes += static_cast<uint64_t>(total_ * element_bytes_);
  HC_RETURN_IF_ERROR(link_.stream().Record(ended_.get()));
  queued_ = static_cast<int>(link_.stream().entries() - entries);
  result_.reset();  // its next user waits for what is queued
  return Status::Ok();
}

Status NcclTask::QueueGroup(double factor) {
  const cuda::Nccl& nccl = link_.nccl();
  const cuda::NcclCommHandle comm = link_.comm();
  NcclReduction reduction;
  if (wire::HasReduceOp(collective_.op)) HC_RETURN_IF_ERROR(reduction.Make(nccl, comm, collective_, factor));
  Status status = nccl.Check(nccl.GroupStart(), "ncclGroupStart", comm);
  if (status.ok()) {
    status = QueueCalls(reduction);
    link_.stream().Count(1);  // NCCL fuses the calls of a group, mostly into one kernel
    // Also after an error, because a group belongs to the thread.
    const Status ended = nccl.Check(nccl.GroupEnd(), "ncclGroupEnd", comm);
    if (status.ok()) status = ended;
  }
  const Status destroyed = reduction.Destroy(nccl, comm);
  return status.ok() ? destroyed : status;
}

bool NcclTask::TestEnd() {
  Status status;
  bool ended = false;
  {
    const cuda::Device::Scope scope(*link_.device());
    status = scope.status();
    if (status.ok() && waits_for_tensors_) {
      const StatusOr<bool> started = started_.Happened();
      status = started.status();
      if (status.ok() && *started) {
        waits_for_tensors_ = false;
        progressed_ = true;  // from here on, the operation waits for other ranks
      }
    }
    if (status.ok() && !waits_for_tensors_) {
      const StatusOr<bool> happened = ended_->Happened();
      status = happened.status();
      ended = status.ok() && *happened;
    }
  }
  if (ended) return Done(Status::Ok());
  if (status.ok() && ++tests_ % kTestsPerQuestion == 0) status = link_.AsyncError();
  if (status.ok()) return false;
  link_.Break({status.code(), collective_.Rank(link_.rank()) + ": " + status.message()});
  return EndBroken();
}

bool NcclTask::EndBroken() {
  if (launched_ && !link_.Quiet()) return false;
  GiveUpResult();
  return Done(link_.broken());
}

void NcclTask::GiveUpResult() noexcept {
  if (link_.gave_up() && result_ != nullptr) result_->GiveUp();
}

bool NcclTask::Done(Status status) {
  status_ = std::move(status);
  progressed_ = true;
  return done_ = true;
}

observe::Phase NcclTask::phase() const {
  if (on_host_ != nullptr) return on_host_->phase();
  return launched_ && waits_for_tensors_ ? observe::Phase::kWaitForData : observe::Phase::kTransfer;
}

void NcclTask::AddWaitingFor(std::vector<int>* ranks) const {
  if (on_host_ != nullptr) on_host_->AddWaitingFor(ranks);
  if (!launched_ && link_.connector() != nullptr) link_.connector()->AddWaitingFor(ranks);
}

std::string NcclTask::Details() const {
  if (on_host_ != nullptr) return on_host_->Details();
  const std::string device = "\n  CUDA device " + std::to_string(collective_.device);
  if (!launched_) return link_.connector() != nullptr ? link_.connector()->Details() : std::string();
  return waits_for_tensors_
             ? device + " has not come to the tensor yet: the work before it on its stream has not ended"
             : device + " runs the operation by NCCL: it waits for other ranks, or for room on the device";
}

std::vector<Segment> NcclTask::TakeSegments() {
  return on_host_ != nullptr ? on_host_->TakeSegments() : std::move(collective_.segments);
}

}  // namespace horocache::data
