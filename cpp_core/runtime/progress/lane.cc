#include "runtime/progress/lane.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/clock.h"
#include "base/memory.h"
#include "control/signature.h"
#include "data/row_layout.h"
#include "runtime/diagnostics/timeline_record.h"

namespace horocache::runtime {
namespace {

// Limits the tasks of one step, so that a long queue of small operations does not delay rounds.
constexpr int kTasksPerStep = 32;

bool HasData(wire::Op op) { return op != wire::Op::kBarrier && op != wire::Op::kJoin && op != wire::Op::kRegister; }

int64_t Elements(const std::vector<int64_t>& shape, size_t from = 0) {
  int64_t count = 1;
  for (size_t i = from; i < shape.size(); ++i) count *= shape[i];
  return count;
}

StatusOr<std::byte*> Allocate(int64_t bytes, Result* result) {
  const size_t rounded = RoundUp(static_cast<size_t>(bytes) + 1, kCacheLine);  // an empty result has an address, too
  result->bytes.reset(static_cast<std::byte*>(std::aligned_alloc(kCacheLine, rounded)));
  result->size_bytes = bytes;
  if (result->bytes != nullptr) {
    PreferHugePages(result->bytes.get(), rounded);
    return result->bytes.get();
  }
  return Status(StatusCode::kOutOfMemory, "no memory for a result of " + std::to_string(bytes) + " bytes");
}

}  // namespace

void Lane::Enqueue(control::Plan* plan) {
  if (idle()) metrics_->lane_busy.Begin(NowNs());
  control::Plan spare;
  if (!spare_.empty()) {
    spare = std::move(spare_.back());
    spare_.pop_back();
  }
  plans_.push_back(std::exchange(*plan, std::move(spare)));
}

bool Lane::Step() {
  bool moved = false;
  for (int tasks = 0; tasks < kTasksPerStep && !plans_.empty() && (this->*task_)(); ++tasks) moved = true;
  return moved || (running_ != nullptr && running_->progressed());
}

bool Lane::StartCollective() {
  const control::Plan& plan = plans_.front();
  still_since_ns_ = NowNs();
  if (item_ == 0 && tensor_ == 0) NoteStarted();
  static_cast<void>(Inject("start"));
  if (plan.op == wire::Op::kJoin || plan.op == wire::Op::kRegister) {
    task_ = &Lane::CompletePlan;
    return true;
  }
  data::Collective collective;
  collective.segments = std::move(segments_);
  collective.segments.clear();
  collective.op = plan.op;
  collective.device_class = plan.device_class;
  collective.algorithm = plan.choice.algorithm;
  collective.sequence = plan.sequence;
  collective.joined = plan.joined;
  collective.divisor_ranks = plan.divisor_ranks;
  collective.names = names_;
  if (HasData(plan.op)) {
    const wire::Signature& signature = *plan.items[item_].signature;
    collective.reduce_op = signature.reduce_op;
    collective.prescale = signature.prescale;
    collective.postscale = signature.postscale;
    collective.root = signature.root;
    collective.dtype = signature.tensors[static_cast<size_t>(plan.items[item_].first_tensor)].dtype;
    if (control::Fuses(plan.op)) {
      BuildFused(plan, &collective);
    } else {
      BuildSingle(plan, &collective);
    }
    if (plan.device_class == wire::DeviceClass::kCuda) AddDevice(plan, &collective);
  }
  if (const Status supported = backend_->Supports(collective); !supported.ok()) {
    status_ = Named(supported);
    task_ = &Lane::CompletePlan;
    return true;
  }
  running_ = backend_->Start(std::move(collective));
  MarkPhase();
  task_ = &Lane::TestCollective;
  return true;
}

void Lane::AddDevice(const control::Plan& plan, data::Collective* collective) {
  computed_.events.clear();
  for (const control::PlanItem& item : plan.items) {
    if (item.op == control::kNoOp) continue;
    const std::optional<cuda::StreamEvent>& computed = OperationTable::FromId(item.op)->computed;
    if (computed.has_value()) computed_.events.push_back(&*computed);
  }
  if (computed_.events.empty()) return;  // this rank has joined
  collective->device = computed_.events.front()->device();
  collective->ready = &computed_;
}

void Lane::NoteStarted() {
  if (timeline_->on()) started_ns_ = still_since_ns_;
  for (const control::PlanItem& item : plans_.front().items) {
    if (item.op != control::kNoOp) table_->NoteStarted(*OperationTable::FromId(item.op), still_since_ns_);
  }
}

void Lane::BuildFused(const control::Plan& plan, data::Collective* collective) const {
  size_t tensors = 0;
  for (const control::PlanItem& item : plan.items) tensors += static_cast<size_t>(item.num_tensors);
  collective->segments.reserve(tensors);
  int64_t bytes = 0;
  for (const control::PlanItem& item : plan.items) {
    const Operation* operation = item.op == control::kNoOp ? nullptr : OperationTable::FromId(item.op);
    for (int i = item.first_tensor; i < item.first_tensor + item.num_tensors; ++i) {
      data::Segment segment;
      if (operation != nullptr) {
        const TensorArgument& tensor = operation->tensors[i];
        segment = {tensor.input, tensor.output, tensor.count};
        // For an operation that is not in place, the binding has just allocated the output.
        if (tensor.output != tensor.input && tensor.output != nullptr && plan.device_class == wire::DeviceClass::kCpu)
          PreferHugePages(tensor.output, static_cast<size_t>(tensor.count) * DTypeBytes(collective->dtype));
      } else {
        segment.count = Elements(item.signature->tensors[i].shape);
      }
      bytes += segment.count * static_cast<int64_t>(DTypeBytes(collective->dtype));
      collective->segments.push_back(segment);
    }
  }
  const auto width = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(bytes, 1) - 1)));
  metrics_->fused_size.at(width).Add(1);
}

void Lane::BuildSingle(const control::Plan& plan, data::Collective* collective) {
  const control::PlanItem& item = plan.items[item_];
  const int index = item.first_tensor + tensor_;
  const wire::TensorMeta& meta = item.signature->tensors[index];
  collective->dtype = meta.dtype;
  collective->row_elements = Elements(meta.shape, 1);
  data::Segment segment;
  if (item.op != control::kNoOp) {
    const Operation& operation = *OperationTable::FromId(item.op);
    const TensorArgument& tensor = operation.tensors[index];
    segment = {tensor.input, tensor.output, tensor.count};
    collective->rows = tensor.rows;
    collective->splits = operation.rows.splits;
    collective->send_starts = operation.rows.send_starts;
    collective->receive_rows = operation.rows.receive_rows;
    collective->receive_starts = operation.rows.receive_starts;
  } else if (plan.op == wire::Op::kReducescatter) {
    segment.count = Elements(meta.shape);
  }
  collective->segments.push_back(segment);
  result_ = Result();
  result_.dtype = meta.dtype;
  result_.divisor_ranks = plan.divisor_ranks;
  result_.shape = meta.shape;
  variable_.rows.clear();
  variable_.allocate = [this](int64_t bytes) { return Allocate(bytes, &result_); };
  collective->output = &variable_;
}

bool Lane::TestCollective() {
  Status status;
  if (running_->Test()) {
    static_cast<void>(Inject("done"));
    status = running_->status();
  } else {
    if (running_->progressed()) still_since_ns_ = NowNs();
    MarkPhase();
    status = Inject("data");
    if (status.code() != FaultInjector::kDrop) return false;
  }
  KeepResult(status);
  segments_ = running_->TakeSegments();
  running_.reset();
  if (!status.ok() && !backend_->broken().ok()) fault_ = backend_->broken();
  // Continues after an error, too: the error may concern this rank only, and the other ranks continue.
  task_ = NextTensor() ? &Lane::StartCollective : &Lane::CompletePlan;
  return true;
}

// Backends do not know the names of operations.
Status Lane::Named(const Status& status) const {
  const auto& items = plans_.front().items;
  if (items.size() != 1 || items[0].signature == nullptr) return status;
  return {status.code(), control::Describe(*items[0].signature) + ": " + status.message()};
}

void Lane::KeepResult(const Status& status) {
  const control::Plan& plan = plans_.front();
  if (!status.ok()) status_ = Named(status);
  if (!status_.ok() || control::Fuses(plan.op) || !HasData(plan.op)) return;
  const control::PlanItem& item = plan.items[item_];
  if (item.op == control::kNoOp) return;
  Operation* operation = OperationTable::FromId(item.op);
  if (!result_.shape.empty()) result_.shape[0] = RowsReceived(*item.signature, operation->rows);
  result_.rows = variable_.rows;
  operation->results.push_back(std::move(result_));
}

int64_t Lane::RowsReceived(const wire::Signature& signature, const RowLists& lists) const {
  if (signature.op == wire::Op::kReducescatter)
    return rank_ < static_cast<int>(variable_.rows.size()) ? variable_.rows[rank_] : 0;
  if (signature.op == wire::Op::kGather && signature.root != rank_) return 0;
  return data::ResultRows(lists.receive_starts, lists.receive_rows, variable_.rows);
}

Status Lane::Inject(std::string_view place) {
  Status fault = faults_->At(place);
  if (!fault.ok() && fault.code() != FaultInjector::kDrop) fault_ = fault;
  return fault;
}

// Advances to the next tensor; false if the plan has none left.
bool Lane::NextTensor() {
  const control::Plan& plan = plans_.front();
  if (control::Fuses(plan.op) || !HasData(plan.op)) return false;
  if (++tensor_ < plan.items[item_].num_tensors) return true;
  tensor_ = 0;
  return ++item_ < plan.items.size();
}

bool Lane::CompletePlan() {
  control::Plan& plan = plans_.front();
  for (const control::PlanItem& item : plan.items) {
    if (plan.op == wire::Op::kJoin && item.op != control::kNoOp)
      OperationTable::FromId(item.op)->last_joined = plan.last_joined;
    FinishItem(item);
  }
  metrics_->fused_operations.Add(1);
  plan.items.clear();
  spare_.push_back(std::move(plan));
  plans_.pop_front();
  if (idle()) metrics_->lane_busy.End(NowNs());
  status_ = Status::Ok();
  item_ = 0;
  tensor_ = 0;
  started_ns_ = 0;
  phase_ns_.fill(0);
  task_ = &Lane::StartCollective;
  return true;
}

void Lane::MarkPhase() {
  if (!timeline_->on()) return;
  int64_t& began_ns = phase_ns_[static_cast<size_t>(running_->phase())];
  if (began_ns == 0) began_ns = NowNs();
}

void Lane::Trace(const control::PlanItem& item, const Operation& operation) {
  observe::OperationTrace trace = TraceOf(operation, plans_.front(), item, operation.status, NowNs());
  trace.backend = backend_->traits().name;
  trace.started_ns = started_ns_;
  trace.phase_ns = phase_ns_;
  timeline_->Add(trace);
}

void Lane::FinishItem(const control::PlanItem& item) {
  if (item.op == control::kNoOp) return;
  Operation* operation = OperationTable::FromId(item.op);
  if (!status_.ok() && operation->status.ok()) operation->status = status_;
  if (!item.last_piece) return;
  metrics_->CountDone(operation->request.signature.op, NowNs() - operation->submitted_ns);
  last_done_ = operation->request.signature.name;
  if (timeline_->on()) Trace(item, *operation);
  table_->Finish(operation, operation->status);
}

void Lane::Fail(const Status& why) {
  running_.reset();
  while (!plans_.empty()) {
    status_ = why;
    CompletePlan();
  }
}

const Operation* Lane::Running() const {
  if (plans_.empty()) return nullptr;
  for (const control::PlanItem& item : plans_.front().items) {
    if (item.op != control::kNoOp) return OperationTable::FromId(item.op);
  }
  return nullptr;
}

}  // namespace horocache::runtime
