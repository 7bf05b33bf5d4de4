// Implements hc.h over Runtime. No exception crosses this boundary.
#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/environment.h"
#include "base/text.h"
#include "capi/hc.h"
#include "capi/header.h"
#include "capi/wrap.h"
#include "runtime/runtime.h"
#include "runtime/submission/prepare.h"

using horocache::DType;
using horocache::InvalidArgumentError;
using horocache::Status;
using horocache::StatusCode;
using horocache::runtime::Operation;
using horocache::runtime::Result;
using horocache::runtime::Runtime;
namespace wire = horocache::wire;

namespace {

static_assert(static_cast<int>(StatusCode::kInternal) == HC_INTERNAL, "hc_status and StatusCode are one list");

int Report(const Status& status, hc_error* error) {
  if (error != nullptr) {
    std::string text;
    try {
      text = horocache::PrintableLines(status.message());
    } catch (const std::bad_alloc&) {
      text = horocache::kNoMemory;
    }
    const size_t length = std::min(text.size(), sizeof(error->text) - 1);
    std::memcpy(error->text, text.data(), length);
    error->text[length] = '\0';
  }
  return static_cast<int>(status.code());
}

void Assign(const hc_text& text, std::string* out) {
  out->assign(text.data == nullptr ? "" : text.data, text.data == nullptr ? 0 : text.bytes);
}

Status CheckTensor(const hc_tensor& tensor, const std::string& what) {
  if (tensor.dtype < 0 || tensor.dtype >= horocache::kNumDTypes || tensor.ndim < 0)
    return InvalidArgumentError(what + " has element type " + std::to_string(tensor.dtype) + " and " +
                                std::to_string(tensor.ndim) + " dimensions");
  if (tensor.ndim > 0 && tensor.shape == nullptr) return InvalidArgumentError(what + " has no shape");
  return Status::Ok();
}

Status FillOutput(const hc_tensor& output, size_t index, Operation* operation) {
  if (output.data == nullptr) return Status::Ok();  // this rank gets no result
  HC_RETURN_IF_ERROR(CheckTensor(output, "output " + std::to_string(index)));
  int64_t count = 1;
  for (int i = 0; i < output.ndim; ++i) count *= output.shape[i];
  return horocache::runtime::SetOutput(index, static_cast<DType>(output.dtype), count,
                                       static_cast<std::byte*>(output.data), operation);
}

Status FillTensor(const hc_request& request, size_t index, Operation* operation) {
  const hc_tensor& input = request.inputs[index];
  HC_RETURN_IF_ERROR(CheckTensor(input, "tensor " + std::to_string(index)));
  horocache::runtime::DescribeTensor(index, static_cast<DType>(input.dtype),
                                     {input.shape, static_cast<size_t>(input.ndim)},
                                     static_cast<const std::byte*>(input.data), operation);
  wire::Signature& signature = operation->request.signature;
  if (request.names == nullptr) {
    horocache::runtime::NameMember(index, request.group != 0, &signature);
  } else {
    Assign(request.names[index], &signature.tensors[index].name);
  }
  return request.outputs == nullptr ? Status::Ok() : FillOutput(request.outputs[index], index, operation);
}

Status AssignList(const char* name, const int64_t* values, int32_t count, std::vector<int64_t>* out) {
  if (count < 0 || (count > 0 && values == nullptr))
    return InvalidArgumentError(std::string("num_") + name + " is " + std::to_string(count) + ", " + name + " " +
                                (values == nullptr ? "null" : "given"));
  out->assign(values, values + (values == nullptr ? 0 : count));
  return Status::Ok();
}

Status FillLists(const hc_request& request, horocache::runtime::RowLists* rows) {
  HC_RETURN_IF_ERROR(AssignList("splits", request.splits, request.num_splits, &rows->splits));
  HC_RETURN_IF_ERROR(AssignList("send_starts", request.send_starts, request.num_send_starts, &rows->send_starts));
  HC_RETURN_IF_ERROR(AssignList("receive_rows", request.receive_rows, request.num_receive_rows, &rows->receive_rows));
  return AssignList("receive_starts", request.receive_starts, request.num_receive_starts, &rows->receive_starts);
}

Status Fill(const hc_request& request, Operation* operation) {
  if (request.op < 0 || request.op >= wire::kNumOps)
    return InvalidArgumentError("there is no operation " + std::to_string(request.op));
  if (request.reduce_op < 0 || request.reduce_op >= wire::kNumReduceOps)
    return InvalidArgumentError("there is no reduction " + std::to_string(request.reduce_op));
  if (request.divide_by < 0 || request.divide_by >= wire::kNumDivideBys)
    return InvalidArgumentError("divide_by is " + std::to_string(request.divide_by) + "; it is 0 or 1");
  if (request.num_tensors < 0 || (request.num_tensors > 0 && request.inputs == nullptr))
    return InvalidArgumentError("num_tensors is " + std::to_string(request.num_tensors) + ", inputs " +
                                (request.inputs == nullptr ? "null" : "given"));
  operation->process_set = static_cast<uint32_t>(request.process_set);
  operation->tag = request.tag;
  operation->first_ready_ns = request.first_ready_ns;
  wire::Signature& signature = operation->request.signature;
  signature.op = static_cast<wire::Op>(request.op);
  signature.divide_by = static_cast<wire::DivideBy>(request.divide_by);
  signature.reduce_op = static_cast<wire::ReduceOp>(request.reduce_op);
  signature.root = request.root;
  signature.priority = request.priority;
  signature.prescale = request.prescale;
  signature.postscale = request.postscale;
  signature.device_class = wire::DeviceClass::kCpu;
  Assign(request.backend, &signature.backend);
  Assign(request.layers, &signature.layers);
  Assign(request.name, &signature.name);
  const auto tensors = static_cast<size_t>(request.num_tensors);
  signature.tensors.resize(tensors);
  operation->tensors.resize(tensors);
  HC_RETURN_IF_ERROR(FillLists(request, &operation->rows));
  operation->allocate_results = request.outputs == nullptr;
  for (size_t i = 0; i < tensors; ++i) HC_RETURN_IF_ERROR(FillTensor(request, i, operation));
  return Status::Ok();
}

// Runs `f` and returns the code of its Status; an exception becomes a Status, too.
template <typename F>
int Guarded(hc_error* error, F&& f) {
  try {
    return Report(f(), error);
  } catch (const std::bad_alloc&) {
    return Report(horocache::NoMemoryError(), error);
  } catch (const std::exception& thrown) {
    return Report({StatusCode::kInternal, thrown.what()}, error);
  }
}

std::function<bool()> Asking(hc_go_on go_on, void* context) {
  if (go_on == nullptr) return nullptr;
  return [go_on, context] { return go_on(context) != 0; };
}

std::vector<int> RanksOf(const hc_process_set& set) { return {set.ranks, set.ranks + set.count}; }

Status Start(const std::map<std::string, std::string>& arguments, const hc_job& job, uint32_t epoch, hc_runtime** out) {
  const auto environment = horocache::ReadEnvironment();
  auto knobs = horocache::Knobs::Parse(environment, arguments);
  if (!knobs.ok()) return knobs.status();
  auto identity = horocache::net::DetectIdentity(*knobs, environment);
  if (!identity.ok()) return identity.status();
  horocache::runtime::RuntimeConfig config{std::move(*knobs), std::move(*identity), epoch, HC_VERSION};
  for (int i = 0; i < job.num_sets; ++i) config.process_sets.push_back(RanksOf(job.sets[i]));
  config.ranks = RanksOf(job.ranks);
  config.communicator = job.communicator;
  auto programs = horocache::program::DecodeLibrary({static_cast<const std::byte*>(job.programs), job.programs_bytes});
  if (!programs.ok()) return programs.status();
  config.programs = std::move(*programs);
  Assign(job.tuning, &config.tuning);
  auto runtime = Runtime::Start(std::move(config), Asking(job.go_on, job.context));
  if (!runtime.ok()) return runtime.status();
  Runtime* const started = runtime->get();
  *out = new hc_runtime{started, std::move(*runtime)};
  return Status::Ok();
}

Status Submit(Runtime& runtime, const hc_request& request, int64_t* handle) {
  Operation* operation = runtime.NewOperation();
  Status status;
  try {
    status = Fill(request, operation);
  } catch (...) {
    runtime.Recycle(operation);
    throw;
  }
  if (!status.ok()) {
    runtime.Recycle(operation);
    return status;
  }
  status = runtime.Submit(operation, request.wait_follows != 0);
  if (status.ok()) *handle = operation->handle;
  return status;
}

Operation* Done(hc_runtime* runtime, int64_t handle) {
  Operation* operation = runtime->runtime->Find(handle);
  return operation != nullptr && IsDone(*operation) ? operation : nullptr;
}

Result* ResultOf(hc_runtime* runtime, int64_t handle, int index) {
  Operation* operation = Done(runtime, handle);
  if (operation == nullptr || index < 0 || index >= static_cast<int>(operation->results.size())) return nullptr;
  return &operation->results[static_cast<size_t>(index)];
}

horocache::runtime::WaitKind KindOfWait(double timeout_s) {
  using horocache::runtime::WaitKind;
  if (timeout_s >= 0) return WaitKind::kLimited;
  return timeout_s == double{HC_WAIT_FOR_GOOD_IN_POOL} ? WaitKind::kForGoodInPool : WaitKind::kForGood;
}

}  // namespace

int hc_abi_version(void) { return HC_ABI_VERSION; }
const char* hc_version(void) { return HC_VERSION; }
const char* hc_header(void) { return horocache::capi::kHeader; }
int hc_num_dtypes(void) { return horocache::kNumDTypes; }
int hc_num_ops(void) { return wire::kNumOps; }

// The tables hold literals, so the views end with a zero byte.
const char* hc_dtype_name(int dtype) {
  return dtype < 0 || dtype >= horocache::kNumDTypes ? nullptr : horocache::DTypeName(static_cast<DType>(dtype)).data();
}
const char* hc_op_name(int op) {
  return op < 0 || op >= wire::kNumOps ? nullptr : wire::OpName(static_cast<wire::Op>(op)).data();
}

int hc_start(const char* const* names, const char* const* values, int count, uint32_t epoch, hc_runtime** out,
             hc_error* error) {
  const hc_job all = {};
  return hc_start_job(names, values, count, &all, epoch, out, error);
}

int hc_start_job(const char* const* names, const char* const* values, int count, const hc_job* job, uint32_t epoch,
                 hc_runtime** out, hc_error* error) {
  *out = nullptr;
  return Guarded(error, [&] {
    std::map<std::string, std::string> arguments;
    for (int i = 0; i < count; ++i) arguments.emplace(names[i], values[i]);
    return Start(arguments, *job, epoch, out);
  });
}

void hc_stop(hc_runtime* runtime) { runtime->runtime->Stop(); }

void hc_log_record_path(hc_runtime* runtime) { runtime->runtime->LogRecordPath(); }

int hc_stop_with_process(hc_runtime* runtime) { return runtime->runtime->StopWithProcess() ? 1 : 0; }
void hc_free(hc_runtime* runtime) { delete runtime; }
void hc_forked_child(hc_runtime* runtime) { runtime->runtime->ForkedChild(); }

int hc_get(hc_runtime* runtime, hc_property property) {
  const horocache::net::Identity& identity = runtime->runtime->identity();
  switch (property) {
    case HC_RANK:
      return identity.rank;
    case HC_SIZE:
      return identity.size;
    case HC_LOCAL_RANK:
      return identity.local_rank;
    case HC_LOCAL_SIZE:
      return identity.local_size;
    case HC_CROSS_RANK:
      return identity.cross_rank;
    case HC_CROSS_SIZE:
      return identity.cross_size;
    case HC_ALIVE:
      return runtime->runtime->alive() ? 1 : 0;
    case HC_MPI:
      return runtime->runtime->mpi();
    case HC_HOMOGENEOUS:
      return identity.homogeneous ? 1 : 0;
    case HC_NCCL:
      return runtime->runtime->nccl();
  }
  return -1;
}

int hc_get_in_set(hc_runtime* runtime, int32_t number, hc_property property) {
  const std::vector<int> ranks = runtime->runtime->RanksOf(static_cast<uint32_t>(number));
  if (property == HC_SIZE) return static_cast<int>(ranks.size());
  const auto own = std::ranges::find(ranks, runtime->runtime->identity().rank);
  return own == ranks.end() ? -1 : static_cast<int>(own - ranks.begin());
}

int hc_submit(hc_runtime* runtime, const hc_request* request, int64_t* handle, hc_error* error) {
  return Guarded(error, [&] { return Submit(*runtime->runtime, *request, handle); });
}

int hc_poll(hc_runtime* runtime, int64_t handle) {
  const Operation* operation = runtime->runtime->Find(handle);
  return operation == nullptr ? -1 : static_cast<int>(IsDone(*operation));
}

int hc_wait(hc_runtime* runtime, int64_t handle, double timeout_s, hc_go_on go_on, void* context) {
  Operation* operation = runtime->runtime->Find(handle);
  if (operation == nullptr) return -1;
  // Another waiting thread may consume the handle; the record then belongs to another operation.
  const auto is_there = [&] { return runtime->runtime->Find(handle) == operation; };
  const auto goes_on = [&] { return is_there() && (go_on == nullptr || go_on(context) != 0); };
  const int64_t deadline_ns = timeout_s < 0 ? horocache::kNever : horocache::DeadlineNs(timeout_s);
  const bool done = runtime->runtime->Wait(operation, deadline_ns, KindOfWait(timeout_s), goes_on);
  return is_there() ? static_cast<int>(done) : -1;
}

int hc_outcome(hc_runtime* runtime, int64_t handle, hc_error* error) {
  const Operation* operation = Done(runtime, handle);
  return Report(operation == nullptr ? InvalidArgumentError("the handle is unknown, or its operation is not done")
                                     : operation->status,
                error);
}

int hc_num_results(hc_runtime* runtime, int64_t handle) {
  const Operation* operation = Done(runtime, handle);
  return operation == nullptr ? 0 : static_cast<int>(operation->results.size());
}

int hc_result(hc_runtime* runtime, int64_t handle, int index, hc_tensor* out, const int64_t** rows, int* num_rows) {
  const Result* result = ResultOf(runtime, handle, index);
  if (result == nullptr) return HC_INVALID_ARGUMENT;
  *out = {result->bytes.get(), static_cast<int32_t>(result->dtype), static_cast<int32_t>(result->shape.size()),
          result->shape.data()};
  *rows = result->rows.empty() ? nullptr : result->rows.data();
  *num_rows = static_cast<int>(result->rows.size());
  return HC_OK;
}

int hc_divisor(hc_runtime* runtime, int64_t handle, int index) {
  const Result* result = ResultOf(runtime, handle, index);
  return result == nullptr ? 0 : result->divisor_ranks;
}

void* hc_take_result(hc_runtime* runtime, int64_t handle, int index) {
  Result* result = ResultOf(runtime, handle, index);
  return result == nullptr ? nullptr : result->bytes.release();
}

int hc_last_joined(hc_runtime* runtime, int64_t handle) {
  const Operation* operation = Done(runtime, handle);
  return operation == nullptr ? -1 : operation->last_joined;
}

int hc_consume(hc_runtime* runtime, int64_t handle) {
  Operation* operation = Done(runtime, handle);
  if (operation == nullptr) return HC_INVALID_ARGUMENT;
  runtime->runtime->Recycle(operation);
  return HC_OK;
}

int32_t hc_next_set(hc_runtime* runtime) { return static_cast<int32_t>(runtime->runtime->NextSet()); }

int hc_propose_set(hc_runtime* runtime, int32_t number, const hc_process_set* set, int64_t* handle, hc_error* error) {
  return Guarded(error,
                 [&] { return runtime->runtime->ProposeSet(static_cast<uint32_t>(number), RanksOf(*set), handle); });
}

int hc_declare_set(hc_runtime* runtime, int32_t number, const hc_process_set* set, hc_error* error) {
  return Guarded(error, [&] { return runtime->runtime->DeclareSet(static_cast<uint32_t>(number), RanksOf(*set)); });
}

int hc_connect_set(hc_runtime* runtime, int32_t number, hc_go_on go_on, void* context, hc_error* error) {
  return Guarded(error,
                 [&] { return runtime->runtime->ConnectSet(static_cast<uint32_t>(number), Asking(go_on, context)); });
}

int hc_open_set(hc_runtime* runtime, int32_t number, hc_error* error) {
  return Guarded(error, [&] { return runtime->runtime->OpenSet(static_cast<uint32_t>(number)); });
}

int hc_propose_removal(hc_runtime* runtime, int32_t number, int64_t* handle, hc_error* error) {
  return Guarded(error, [&] { return runtime->runtime->ProposeRemoval(static_cast<uint32_t>(number), handle); });
}

int hc_leave_set(hc_runtime* runtime, int32_t number, hc_go_on go_on, void* context, hc_error* error) {
  return Guarded(error,
                 [&] { return runtime->runtime->LeaveSet(static_cast<uint32_t>(number), Asking(go_on, context)); });
}

int hc_drop_set(hc_runtime* runtime, int32_t number, hc_error* error) {
  return Guarded(error, [&] { return runtime->runtime->DropSet(static_cast<uint32_t>(number)); });
}

int hc_watch_stacks(hc_runtime* runtime, const hc_stacks* stacks, const char* own_folder, hc_error* error) {
  const horocache::runtime::StackSource source{stacks->file, stacks->ask, stacks->answer, stacks->signal,
                                               stacks->keeps_lock};
  return Guarded(error, [&] { return runtime->runtime->WatchStacks(source, own_folder); });
}

int hc_start_timeline(hc_runtime* runtime, const char* path, int mark_rounds, hc_error* error) {
  return Guarded(error, [&] { return runtime->runtime->StartTimeline(path, mark_rounds != 0); });
}

void hc_stop_timeline(hc_runtime* runtime) { runtime->runtime->StopTimeline(); }

void hc_abort(hc_runtime* runtime, const char* why) { runtime->runtime->Abort(why); }

void hc_count_step(hc_runtime* runtime) { runtime->runtime->CountStep(); }

void hc_metrics(hc_runtime* runtime, void (*visit)(void*, const char*, uint64_t), void* context) {
  for (const auto& [name, value] : runtime->runtime->metrics().Snapshot()) visit(context, name.c_str(), value);
}

void hc_knobs(hc_runtime* runtime, void (*visit)(void*, const char*, const char*, const char*), void* context) {
  const auto& entries = runtime->runtime->knobs().entries;
  for (size_t i = 0; i < entries.size(); ++i) {
    visit(context, std::string(horocache::KnobTable()[i].name).c_str(), entries[i].text.c_str(),
          std::string(horocache::KnobSourceName(entries[i].source)).c_str());
  }
}

void hc_backends(hc_runtime* runtime, int32_t process_set, void (*visit)(void*, const char*, const char*, const char*),
                 void* context) {
  for (const auto& backend : runtime->runtime->Backends(static_cast<uint32_t>(process_set))) {
    visit(context, backend.name.c_str(), horocache::Join(backend.algorithms, ",").c_str(),
          horocache::Join(horocache::control::OperationsOf(backend), ",").c_str());
  }
}

int hc_configure(hc_runtime* runtime, const char* settings, hc_error* error) {
  return Guarded(error, [&] { return runtime->runtime->Configure(settings); });
}

uint64_t hc_settings(hc_runtime* runtime, void (*visit)(void*, const char*), void* context) {
  const Runtime::AppliedSettings settings = runtime->runtime->settings();
  if (visit != nullptr) visit(context, settings.note.c_str());
  return settings.changes;
}

void hc_log_operations(hc_runtime* runtime, uint64_t capacity) {
  if (capacity == 0) {
    runtime->runtime->log().Stop();
  } else {
    runtime->runtime->log().Start(capacity);
  }
}

uint64_t hc_take_log(hc_runtime* runtime, void (*visit)(void*, const hc_record*), void* context) {
  uint64_t lost = 0;
  for (const horocache::observe::OperationRecord& one : runtime->runtime->log().Take(&lost)) {
    const hc_record record = {one.name.c_str(),
                              one.op.c_str(),
                              one.reduce_op.c_str(),
                              one.dtype.c_str(),
                              one.backend.c_str(),
                              one.algorithm.c_str(),
                              one.chosen_by.c_str(),
                              one.layers.c_str(),
                              one.error.c_str(),
                              static_cast<int32_t>(one.process_set),
                              one.tensors,
                              one.bytes,
                              one.sequence,
                              one.fused,
                              one.peer,
                              one.submitted_ns,
                              one.agreed_ns,
                              one.started_ns,
                              one.ended_ns};
    visit(context, &record);
  }
  return lost;
}

const hc_api* hc_get_api(void) {
  static constexpr hc_api kApi = {HC_ABI_VERSION, hc_get,     hc_get_in_set, hc_submit,  hc_poll,
                                  hc_wait,        hc_outcome, hc_result,     hc_divisor, hc_take_result,
                                  hc_last_joined, hc_consume, hc_count_step};
  return &kApi;
}
