#include "data/backends/nccl/task.h"

#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "data/kernels/widen.h"

namespace horocache::data {
namespace {

constexpr unsigned kTestsPerQuestion = 32;  // tests of an operation for each question to NCCL about errors

std::optional<cuda::NcclOperation> OperationOf(wire::ReduceOp operation) {
  switch (operation) {
    case wire::ReduceOp::kSum:
    case wire::ReduceOp::kAverage:
      return 0;
    case wire::ReduceOp::kProduct:
      return 1;
    case wire::ReduceOp::kMax:
      return 2;
    case wire::ReduceOp::kMin:
      return 3;
    default:
      return std::nullopt;
  }
}

// The factor of each input of a sum or an average.
double FactorOf(const Collective& collective, int ranks) {
  const double scale = collective.prescale * collective.postscale;
  return collective.reduce_op == wire::ReduceOp::kAverage ? scale / collective.Divisor(ranks) : scale;
}

// A number as an element of a dtype: NCCL reads a factor in the type of the data.
std::array<std::byte, sizeof(double)> Element(DType dtype, double number) {
  std::array<std::byte, sizeof(double)> element = {};
  const auto single = static_cast<float>(number);
  if (dtype == DType::kFloat64) {
    std::memcpy(element.data(), &number, sizeof number);
  } else if (dtype == DType::kFloat32) {
    std::memcpy(element.data(), &single, sizeof single);
  } else {
    Narrow(dtype, reinterpret_cast<const std::byte*>(&single), element.data(), 1);
  }
  return element;
}

}  // namespace

bool NcclTask::Runs(const Collective& collective, int ranks, bool deterministic) {
  // A rank that has joined may not even have a device.
  if (!collective.joined.empty()) return false;
  if (collective.op == wire::Op::kBroadcast) return true;
  if (collective.op != wire::Op::kAllreduce && collective.op != wire::Op::kReduce) return false;
  if (deterministic || !cuda::NcclTypeOf(collective.dtype) || !OperationOf(collective.reduce_op)) return false;
  // Factors are for sums of floating-point numbers: NCCL would round a factor for integers.
  const bool sums = collective.reduce_op == wire::ReduceOp::kSum || collective.reduce_op == wire::ReduceOp::kAverage;
  if (sums) return IsFloat(collective.dtype) || FactorOf(collective, ranks) == 1.0;
  return collective.prescale == 1.0 && collective.postscale == 1.0;
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
  if (total_ == 0) return Done(Status::Ok());
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
  progressed_ = true;
  const Status launched = Launch();
  if (launched.ok()) return false;
  link_.Break({launched.code(), collective_.Rank(link_.rank()) + ": " + launched.message()});
  return EndBroken();
}

Status NcclTask::Launch() {
  const cuda::Device::Scope scope(*link_.device());
  HC_RETURN_IF_ERROR(scope.status());
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
  return link_.stream().Record(ended_.get());
}

Status NcclTask::QueueAll() {
  const cuda::Nccl& nccl = link_.nccl();
  const cuda::NcclCommHandle comm = link_.comm();
  cuda::NcclOperation operation = 0;
  bool created = false;
  if (collective_.op != wire::Op::kBroadcast) {
    operation = *OperationOf(collective_.reduce_op);
    const bool sums = operation == 0;
    const double factor = sums ? FactorOf(collective_, link_.ranks()) : 1.0;
    if (factor != 1.0) {
      auto element = Element(collective_.dtype, factor);
      const cuda::NcclResult result = nccl.RedOpCreatePreMulSum(
          &operation, element.data(), *cuda::NcclTypeOf(collective_.dtype), cuda::kNcclScalarOnHost, comm);
      HC_RETURN_IF_ERROR(nccl.Check(result, "ncclRedOpCreatePreMulSum", comm));
      created = true;
    }
  }
  Status status = nccl.Check(nccl.GroupStart(), "ncclGroupStart", comm);
  if (status.ok()) {
    for (const Segment& segment : collective_.segments) {
      if (status.ok() && segment.count > 0) status = QueueOne(segment, operation);
    }
    // Also after an error, because a group belongs to the thread.
    const Status ended = nccl.Check(nccl.GroupEnd(), "ncclGroupEnd", comm);
    if (status.ok()) status = ended;
  }
  if (created) {
    const Status destroyed = nccl.Check(nccl.RedOpDestroy(operation, comm), "ncclRedOpDestroy", comm);
    if (status.ok()) status = destroyed;
  }
  return status;
}

Status NcclTask::QueueOne(const Segment& segment, cuda::NcclOperation operation) {
  const cuda::Nccl& nccl = link_.nccl();
  const cuda::NcclCommHandle comm = link_.comm();
  const cuda::StreamHandle stream = link_.stream().handle();
  const auto count = static_cast<size_t>(segment.count);
  if (collective_.op == wire::Op::kBroadcast) {
    // Bytes, so that it works for every type. The root's tensor may have no result, or itself.
    std::byte* const output = segment.output != nullptr ? segment.output : const_cast<std::byte*>(segment.input);
    const std::byte* const input = segment.input != nullptr ? segment.input : output;
    return nccl.Check(nccl.Broadcast(input, output, count * static_cast<size_t>(element_bytes_), cuda::kNcclUint8,
                                     collective_.root, comm, stream),
                      "ncclBroadcast", comm);
  }
  const cuda::NcclDataType type = *cuda::NcclTypeOf(collective_.dtype);
  if (collective_.op == wire::Op::kReduce) {
    return nccl.Check(
        nccl.Reduce(segment.input, segment.output, count, type, operation, collective_.root, comm, stream),
        "ncclReduce", comm);
  }
  return nccl.Check(nccl.AllReduce(segment.input, segment.output, count, type, operation, comm, stream),
                    "ncclAllReduce", comm);
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
  return Done(link_.broken());
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
