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
  bool moved = TestLaunched();
  for (int tasks = 0; tasks < kTasksPerStep && !plans_.empty() && (this->*task_)(); ++tasks) moved = true;
  return moved || (run_.task != nullptr && run_.task->progressed());
}

bool Lane::StartCollective() {
  const control::Plan& plan = plans_.front();
  run_.still_since_ns = NowNs();
  given_.reset();
  misfit_ = Status::Ok();
  if (item_ == 0 && tensor_ == 0) NoteStarted();
  static_cast<void>(Inject("start"));
  if (plan.op == wire::Op::kJoin || plan.op == wire::Op::kRegister) {
    task_ = &Lane::CompletePlan;
    return true;
  }
  data::Collective collective;
  if (!segments_.empty()) {
    collective.segments = std::move(segments_.back());
    segments_.pop_back();
  }
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
    run_.status = Named(plan, supported);
    if (run_.launched.empty()) {
      task_ = &Lane::CompletePlan;
    } else {
      NoteLaunched(nullptr);  // the device has the tensors before
    }
    return true;
  }
  run_.task = backend_->Start(std::move(collective));
  MarkPhase(*run_.task, &run_);
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

// Of the events of one stream, the last one is enough: a wait for each would fill the device's queue.
Status Lane::Computed::HoldBack(cuda::Stream* stream, bool* waits) {
  last_of_stream_.clear();
  for (const cuda::StreamEvent* const event : events) {
    const auto same = [event](const cuda::StreamEvent* other) { return other->SameStream(*event); };
    const auto found = std::ranges::find_if(last_of_stream_, same);
    if (found == last_of_stream_.end()) {
      last_of_stream_.push_back(event);
    } else if ((*found)->Before(*event)) {
      *found = event;
    }
  }
  for (const cuda::StreamEvent* const event : last_of_stream_) {
    if (event->Happened()) continue;
    HC_RETURN_IF_ERROR(event->HoldBack(stream));
    *waits = true;
  }
  return Status::Ok();
}

void Lane::NoteStarted() {
  if (timeline_->on()) run_.started_ns = run_.still_since_ns;
  const control::Plan& plan = plans_.front();
  for (const control::PlanItem& item : plan.items) {
    if (item.op == control::kNoOp) continue;
    table_->NoteStarted(*OperationTable::FromId(item.op), plan.sequence, run_.still_since_ns);
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
  fills_given_ = plan.op == wire::Op::kScatter;  // which has no receive_rows, by which a caller says what it expects
  if (item.op != control::kNoOp) {
    const Operation& operation = *OperationTable::FromId(item.op);
    const TensorArgument& tensor = operation.tensors[index];
    segment = {tensor.input, nullptr, tensor.count};
    const auto bytes = static_cast<size_t>(tensor.output_count) * DTypeBytes(meta.dtype);
    if (!operation.allocate_results) given_ = std::span(tensor.output, bytes);
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
  variable_.allocate = [this](int64_t bytes) { return PlaceFor(bytes); };
  variable_.keeps_gaps = given_.has_value();
  collective->output = &variable_;
}

StatusOr<std::byte*> Lane::PlaceFor(int64_t bytes) {
  const auto room = given_ ? static_cast<int64_t>(given_->size()) : 0;
  if (!given_ || (bytes == 0 && !(fills_given_ && room > 0))) return Allocate(bytes, &result_);
  if (fills_given_ ? bytes == room : bytes <= room) return given_->data();
  // The other ranks count on this rank's part, so it takes its result elsewhere and fails alone.
  misfit_ = InvalidArgumentError(
      "the result has " + std::to_string(bytes) + " bytes, and the tensor that " + names_->Text(rank_) +
      " gives for it has " + std::to_string(room) +
      (fills_given_ ? "; give it one of the same size, or none" : "; give it a larger one, or none"));
  return Allocate(bytes, &result_);
}

bool Lane::TestTask(const control::Plan& plan, std::unique_ptr<data::CollectiveTask>* task, Run* run) {
  Status status;
  if ((*task)->Test()) {
    static_cast<void>(Inject("done"));
    status = (*task)->status();
    if (status.ok()) status = std::exchange(misfit_, Status::Ok());
  } else {
    if ((*task)->progressed()) run->still_since_ns = NowNs();
    MarkPhase(**task, run);
    status = Inject("data");
    if (status.code() != FaultInjector::kDrop) return false;
  }
  if (!status.ok()) run->status = Named(plan, status);
  segments_.push_back((*task)->TakeSegments());
  segments_.back().clear();
  task->reset();  // a task that is dropped half way breaks its backend
  if (!status.ok() && !backend_->broken().ok()) fault_ = backend_->broken();
  return true;
}

bool Lane::TestLaunchedTask(const control::Plan& plan, std::unique_ptr<data::CollectiveTask>* task, Run* run) {
  const int queued = (*task)->queued();
  if (!TestTask(plan, task, run)) return false;
  queued_ -= queued;
  return true;
}

bool Lane::TestEarlier(const control::Plan& plan, Run* run) {
  while (!run->launched.empty()) {
    if (!TestLaunchedTask(plan, &run->launched.front(), run)) return false;
    run->launched.pop_front();
    run->still_since_ns = NowNs();  // of the next tensor
  }
  return true;
}

bool Lane::TestCollective() {
  const control::Plan& plan = plans_.front();
  std::shared_ptr<const cuda::Event> on_device;  // happens when the device has done all tensors so far
  if (!TestEarlier(plan, &run_)) on_device = run_.launched.back()->on_device();
  // A test may launch the collective.
  if (queued_ >= kMostQueued) return false;
  const bool ended = TestTask(plan, &run_.task, &run_);
  if (!ended) {
    if (!run_.task->launched()) return false;
    on_device = run_.task->on_device();
    queued_ += run_.task->queued();
  }
  KeepResult();
  // Continues after an error, too: the error may concern this rank only, and the other ranks continue.
  const bool more = NextTensor();
  if (more && !ended) run_.launched.push_back(std::move(run_.task));
  if (more) {
    task_ = &Lane::StartCollective;
  } else if (ended && run_.launched.empty()) {
    task_ = &Lane::CompletePlan;
  } else {
    NoteLaunched(on_device);
  }
  return true;
}

void Lane::NoteLaunched(const std::shared_ptr<const cuda::Event>& on_device) {
  for (const control::PlanItem& item : plans_.front().items) {
    if (item.op == control::kNoOp || !item.last_piece || !run_.status.ok()) continue;
    Operation* const operation = OperationTable::FromId(item.op);
    if (operation->status.ok()) table_->NoteLaunched(operation, on_device);
  }
  launched_.push_back({std::move(plans_.front()), std::exchange(run_, Run())});
  plans_.pop_front();
  Advance();
}

bool Lane::TestLaunched() {
  bool moved = false;
  while (!launched_.empty()) {
    Launched& oldest = launched_.front();
    const bool ended = TestEarlier(oldest.plan, &oldest.run) &&
                       (oldest.run.task == nullptr || TestLaunchedTask(oldest.plan, &oldest.run.task, &oldest.run));
    if (!ended) return moved || oldest.run.oldest()->progressed();
    Complete(&oldest.plan, oldest.run);
    launched_.pop_front();
    // It is the next one's turn only now.
    (launched_.empty() ? run_ : launched_.front().run).still_since_ns = NowNs();
    if (idle()) metrics_->lane_busy.End(NowNs());
    moved = true;
  }
  return moved;
}

// Backends do not know the names of operations.
Status Lane::Named(const control::Plan& plan, const Status& status) {
  if (plan.items.size() != 1 || plan.items[0].signature == nullptr) return status;
  return {status.code(), control::Describe(*plan.items[0].signature) + ": " + status.message()};
}

void Lane::KeepResult() {
  const control::Plan& plan = plans_.front();
  const std::shared_ptr<cuda::DeviceBuffer> on_device = std::move(variable_.on_device);
  if (!run_.status.ok() || control::Fuses(plan.op) || !HasData(plan.op)) return;
  const control::PlanItem& item = plan.items[item_];
  if (item.op == control::kNoOp) return;
  Operation* operation = OperationTable::FromId(item.op);
  if (!result_.shape.empty()) result_.shape[0] = RowsReceived(*item.signature, operation->rows);
  result_.rows = variable_.rows;
  result_.on_device = on_device;
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
  if (!launched_.empty()) return false;  // plans end in their order, also the pieces of one group
  Complete(&plans_.front(), run_);
  plans_.pop_front();
  if (idle()) metrics_->lane_busy.End(NowNs());
  Advance();
  return true;
}

void Lane::Complete(control::Plan* plan, const Run& run) {
  for (const control::PlanItem& item : plan->items) {
    if (plan->op == wire::Op::kJoin && item.op != control::kNoOp)
      OperationTable::FromId(item.op)->last_joined = plan->last_joined;
    FinishItem(*plan, run, item);
  }
  metrics_->fused_operations.Add(1);
  plan->items.clear();
  spare_.push_back(std::move(*plan));
}

void Lane::Advance() {
  run_.status = Status::Ok();
  run_.started_ns = 0;
  run_.phase_ns.fill(0);
  item_ = 0;
  tensor_ = 0;
  task_ = &Lane::StartCollective;
}

void Lane::MarkPhase(const data::CollectiveTask& task, Run* run) {
  if (!timeline_->on()) return;
  int64_t& began_ns = run->phase_ns[static_cast<size_t>(task.phase())];
  if (began_ns == 0) began_ns = NowNs();
}

void Lane::Trace(const control::Plan& plan, const Run& run, const control::PlanItem& item, const Operation& operation) {
  observe::OperationTrace trace = TraceOf(operation, plan, item, operation.status, NowNs());
  const control::BackendTraits& traits = backend_->traits();
  trace.backend = traits.name;
  if (plan.choice.algorithm < traits.algorithms.size()) trace.algorithm = traits.algorithms[plan.choice.algorithm];
  trace.started_ns = run.started_ns;
  trace.phase_ns = run.phase_ns;
  timeline_->Add(trace);
}

void Lane::FinishItem(const control::Plan& plan, const Run& run, const control::PlanItem& item) {
  if (item.op == control::kNoOp) return;
  Operation* operation = OperationTable::FromId(item.op);
  if (!run.status.ok() && operation->status.ok()) operation->status = run.status;
  if (!item.last_piece) return;
  metrics_->CountDone(operation->request.signature.op, NowNs() - operation->submitted_ns);
  last_done_ = operation->request.signature.name;
  if (timeline_->on()) Trace(plan, run, item, *operation);
  table_->Finish(operation, operation->status);
}

void Lane::Fail(const Status& why, bool in_use) {
  if (idle()) return;
  if (in_use && run_.task != nullptr) {
    for (const control::PlanItem& item : plans_.front().items) {
      if (item.op != control::kNoOp) OperationTable::FromId(item.op)->owner = nullptr;
    }
  }
  for (; !launched_.empty(); launched_.pop_front()) {
    Launched& oldest = launched_.front();
    oldest.run.Drop();
    oldest.run.status = why;
    Complete(&oldest.plan, oldest.run);
  }
  queued_ = 0;
  if (idle()) metrics_->lane_busy.End(NowNs());
  run_.Drop();
  while (!plans_.empty()) {
    run_.status = why;
    CompletePlan();
  }
}

const control::Plan* Lane::OldestPlan() const {
  if (!launched_.empty()) return &launched_.front().plan;
  return plans_.empty() ? nullptr : &plans_.front();
}

const Operation* Lane::Running() const {
  const control::Plan* const plan = OldestPlan();
  if (plan == nullptr) return nullptr;
  for (const control::PlanItem& item : plan->items) {
    if (item.op != control::kNoOp) return OperationTable::FromId(item.op);
  }
  return nullptr;
}

bool Lane::awaits_tensors() const {
  const data::CollectiveTask* const task = OldestRun().oldest();
  return task != nullptr && task->phase() == observe::Phase::kWaitForData &&
         OldestPlan()->device_class == wire::DeviceClass::kCuda;
}

}  // namespace horocache::runtime
