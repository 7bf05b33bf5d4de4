#include "runtime/progress/inline_lane.h"

#include <cstring>

#include "base/clock.h"
#include "base/dtype.h"
#include "control/signature.h"
#include "runtime/diagnostics/timeline_record.h"

namespace horocache::runtime {
namespace {

constexpr std::string_view kBackend = "round";  // on the timeline, in place of a backend's name

size_t BytesOf(const Operation& operation, size_t index) {
  return static_cast<size_t>(operation.tensors[index].count) *
         DTypeBytes(operation.request.signature.tensors[index].dtype);
}

}  // namespace

std::span<const std::byte> CopyInlineData(const Operation& operation, InlineData* data) {
  const wire::Signature& signature = operation.request.signature;
  const bool fits = signature.op == wire::Op::kAllreduce && signature.device_class == wire::DeviceClass::kCpu &&
                    operation.bytes <= static_cast<int64_t>(data->size());
  if (!fits) return {};
  size_t at = 0;
  for (size_t i = 0; i < operation.tensors.size(); ++i) {
    const size_t bytes = BytesOf(operation, i);
    if (bytes > 0) std::memcpy(data->data() + at, operation.tensors[i].input, bytes);
    at += bytes;
  }
  return std::span(*data).first(at);
}

void InlineLane::Run(const control::Plan& plan) {
  const control::PlanItem& item = plan.items[0];
  Operation* operation = OperationTable::FromId(item.op);
  const int64_t began_ns = NowNs();
  table_->NoteStarted(*operation, plan.sequence, began_ns);
  static_cast<void>(Inject("start"));
  Status status = Inject("data");
  if (status.code() != FaultInjector::kDrop) status = Inject("inline");
  if (status.code() != FaultInjector::kDrop) status = Fold(plan, operation);
  static_cast<void>(Inject("done"));
  if (!status.ok()) status = {status.code(), control::Describe(*item.signature) + ": " + status.message()};
  metrics_->inline_operations.Add(1);
  metrics_->CountDone(plan.op, NowNs() - operation->submitted_ns);
  if (timeline_->on()) {
    observe::OperationTrace trace = TraceOf(*operation, plan, item, status, NowNs());
    trace.backend = kBackend;
    trace.started_ns = began_ns;
    trace.phase_ns[static_cast<size_t>(observe::Phase::kTransfer)] = began_ns;
    timeline_->Add(trace);
  }
  table_->Finish(operation, std::move(status));
}

Status InlineLane::Fold(const control::Plan& plan, Operation* operation) {
  InlineData result;
  HC_RETURN_IF_ERROR(fold_.Run(*plan.items[0].signature, size_, plan.divisor_ranks, plan.contributions,
                               operation->bytes, result.data()));
  size_t at = 0;
  for (size_t i = 0; i < operation->tensors.size(); ++i) {
    const size_t bytes = BytesOf(*operation, i);
    if (bytes > 0 && operation->tensors[i].output != nullptr)
      std::memcpy(operation->tensors[i].output, result.data() + at, bytes);
    at += bytes;
  }
  ++counters_.operations;
  counters_.payload_bytes += at;
  // Copies: this rank's data is stored at submission, put behind the bitvector and published (3). The data of every
  // rank is read and put into the plan (2 per rank). The result is reduced and stored in the outputs (2).
  counters_.bytes_copied += (3 + 2 * static_cast<uint64_t>(size_) + 2) * at;
  return Status::Ok();
}

Status InlineLane::Inject(std::string_view place) {
  Status fault = faults_->At(place);
  if (fault.code() == FaultInjector::kDrop) {
    fault_ = {StatusCode::kAborted, names_->Text(rank_) + " abandoned an inline operation"};
  } else if (!fault.ok()) {
    fault_ = fault;
  }
  return fault;
}

}  // namespace horocache::runtime
