#include "python/runtime/py_runtime.h"

#include <pybind11/stl.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/environment.h"
#include "base/text.h"
#include "capi/hc.h"
#include "control/signature.h"
#include "python/dag/task_trace.h"
#include "python/errors.h"
#include "runtime/submission/prepare.h"

namespace py = pybind11;

namespace horocache::python {
namespace {

using runtime::Operation;
using runtime::TensorArgument;

// Assigns the bytes of a str or bytes object. Lone surrogates in a str become the bytes that they escape.
void AssignText(py::handle text, std::string* out) {
  if (PyBytes_Check(text.ptr())) {
    out->assign(PyBytes_AS_STRING(text.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(text.ptr())));
    return;
  }
  Py_ssize_t length = 0;
  if (const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &length); bytes != nullptr) {
    out->assign(bytes, static_cast<size_t>(length));
    return;
  }
  PyErr_Clear();  // lone surrogates: the str holds bytes in surrogateescape form
  const py::object encoded =
      py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape"));
  if (!encoded) throw py::error_already_set();
  AssignText(encoded, out);
}

std::set<PyRuntime*> live;  // guarded by the GIL, here and below
pid_t process = 0;          // that has started them; a child of fork has the parent's pending calls, too
std::atomic<bool> asked_to_drop{false};
std::atomic<bool> exiting{false};  // the interpreter is about to end

// The fields of a horocache.base.request.Request, by their positions.
enum RequestField : uint8_t {
  kOp,
  kInputs,
  kOutputs,
  kName,
  kNames,
  kReduceOp,
  kPrescale,
  kPostscale,
  kRoot,
  kSplits,
  kProcessSet,
  kBackend,
  kLayers,
  kGroup,
  kWaitFollows,
  kSendStarts,
  kReceiveRows,
  kReceiveStarts,
  kPriority,
  kDivideBy,
  kTag,
  kFirstReadyNs,
  kPatient,
};
constexpr std::array<const char*, kPatient + 1> kRequestFields = {
    "op",       "inputs",    "outputs",      "name",           "names",        "reduce_op",
    "prescale", "postscale", "root",         "splits",         "process_set",  "backend",
    "layers",   "group",     "wait_follows", "send_starts",    "receive_rows", "receive_starts",
    "priority", "divide_by", "tag",          "first_ready_ns", "patient"};

// The fields of a request that SubmitOwned takes.
struct Numbers {
  int reduce_op = 0;
  double prescale = 1.0, postscale = 1.0;
  bool wait_follows = false;
};

// These throw TypeError, or OverflowError if the number is out of range.
int64_t LongOf(const py::object& number) {
  const long long value = PyLong_AsLongLong(number.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

int IntegerOf(const py::object& number) {
  const int64_t value = LongOf(number);
  if (value != static_cast<int>(value)) {
    PyErr_SetString(PyExc_OverflowError, (std::to_string(value) + " does not fit into 32 bits").c_str());
    throw py::error_already_set();
  }
  return static_cast<int>(value);
}

double NumberOf(const py::object& number) {
  const double value = PyFloat_AsDouble(number.ptr());
  if (value == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

bool IsTrue(const py::object& value) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) throw py::error_already_set();
  return truth != 0;
}

void AssignList(const py::object& numbers, std::vector<int64_t>* out) {
  out->clear();
  if (numbers.is_none()) return;
  for (const py::handle number : numbers) out->push_back(number.cast<int64_t>());
}

uint32_t BitsOf(const std::vector<std::string>& names, int count, std::string_view (*name_of)(int)) {
  uint32_t bits = 0;
  for (int i = 0; i < count; ++i) {
    if (std::ranges::find(names, name_of(i)) != names.end()) bits |= 1u << i;
  }
  return bits;
}

// The caller has checked the names.
control::BackendTraits TraitsOf(const UserBackend& backend) {
  const auto& [name, operations, moved, reduced] = backend;
  const auto type_bits = [](const std::vector<std::string>& names) {
    return BitsOf(names, kNumDTypes, [](int dtype) { return DTypeName(static_cast<DType>(dtype)); });
  };
  control::BackendTraits traits;
  traits.name = name;
  traits.ops = BitsOf(operations, wire::kNumOps, [](int op) { return wire::OpName(static_cast<wire::Op>(op)); });
  traits.moved_dtypes = type_bits(moved);
  traits.reduced_dtypes = type_bits(reduced);
  traits.device_classes = 1u << static_cast<int>(wire::DeviceClass::kCpu);
  return traits;
}

}  // namespace

std::vector<std::string> RequestFields() { return {kRequestFields.begin(), kRequestFields.end()}; }

std::shared_ptr<const program::Library> DecodeOrThrow(std::string_view programs) {
  auto library = program::DecodeLibrary(std::as_bytes(std::span(programs)));
  ThrowIfError(library.status());
  return std::move(*library);
}

PyRuntime::PyRuntime(const Texts& arguments, uint32_t epoch, std::vector<std::vector<int>> process_sets,
                     uint64_t communicator, std::vector<int> ranks, std::string_view programs, std::string tuning,
                     const std::vector<UserBackend>& backends) {
  const auto environment = ReadEnvironment();
  StatusOr<Knobs> knobs = Knobs::Parse(environment, arguments);
  ThrowIfError(knobs.status());
  StatusOr<net::Identity> identity = net::DetectIdentity(*knobs, environment);
  ThrowIfError(identity.status());
  runtime::RuntimeConfig config{std::move(*knobs), std::move(*identity), epoch, HC_VERSION};
  config.process_sets = std::move(process_sets);
  config.communicator = communicator;
  config.ranks = std::move(ranks);
  config.programs = DecodeOrThrow(programs);
  config.tuning = std::move(tuning);
  for (const UserBackend& backend : backends) config.user_backends.push_back(TraitsOf(backend));
  Start(std::move(config));
}

PyRuntime::~PyRuntime() {
  live.erase(this);
  if (runtime_ == nullptr) return;
  Stop();
  const py::gil_scoped_release released;  // a link may wait for its peers' farewells
  runtime_.reset();
}

void PyRuntime::Start(runtime::RuntimeConfig config) {
  PrepareOutOfMemory();
  config.on_freed = &PyRuntime::AskToDropOwners;
  CallPatiently([&](const auto& go_on) {
    auto started = runtime::Runtime::Start(std::move(config), go_on);
    if (started.ok()) runtime_ = std::move(*started);
    return started.status();
  });
  process = getpid();
  live.insert(this);
  TraceTasksTo(runtime_->timeline());
}

void PyRuntime::Stop() {
  TraceTasksNoMoreTo(runtime_->timeline());
  {
    const py::gil_scoped_release released;
    runtime_->Stop();
  }
  DropFinishedOwners();
}

// If an exit handler stops the runtime later, this object must outlive the interpreter, with the owners of pending
// tensors.
bool PyRuntime::StopWithProcess() {
  bool later = false;
  exiting = true;
  {
    const py::gil_scoped_release released;
    later = runtime_->StopWithProcess();
  }
  if (later) py::cast(this).inc_ref();
  DropFinishedOwners();
  return later;
}

// Leaks on purpose: the child of a fork has no threads to join and must not tear down the parent's resources.
void PyRuntime::ForkedChild() {
  runtime_->ForkedChild();
  parents_ = runtime_.release();
}

runtime::Runtime& PyRuntime::Get() {
  if (runtime_ == nullptr)
    ThrowIfError(
        {StatusCode::kForked, "horocache cannot be used in a child of fork(); call init() in a new process instead."});
  return *runtime_;
}

std::pair<uintptr_t, uintptr_t> PyRuntime::CApi() {
  as_c_.runtime = &Get();
  return {reinterpret_cast<uintptr_t>(hc_get_api()), reinterpret_cast<uintptr_t>(&as_c_)};
}

Operation* PyRuntime::FindOrThrow(int64_t handle) {
  Operation* operation = Get().Find(handle);
  if (operation == nullptr) {
    PyErr_SetString(PyExc_ValueError,
                    ("Handle " + std::to_string(handle) + " was not created or has been cleared.").c_str());
    throw py::error_already_set();
  }
  return operation;
}

// ---- submission

int64_t PyRuntime::Submit(const py::tuple& request) {
  if (request.size() != kRequestFields.size()) throw py::type_error("submit() takes a horocache.base.request.Request");
  const auto field = [&request](RequestField which) {
    return py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(request.ptr(), which));
  };
  runtime::Runtime& runtime = Get();
  DropFinishedOwners();
  Operation* operation = runtime.NewOperation();
  py::object owner;
  Numbers numbers;
  try {
    const py::object outputs = field(kOutputs);
    owner = py::make_tuple(py::tuple(field(kInputs)), outputs.is_none() ? outputs : py::object(py::tuple(outputs)));
    AssignList(field(kSplits), &operation->rows.splits);
    AssignList(field(kSendStarts), &operation->rows.send_starts);
    AssignList(field(kReceiveRows), &operation->rows.receive_rows);
    AssignList(field(kReceiveStarts), &operation->rows.receive_starts);
    Place place;
    Fill(operation, IntegerOf(field(kOp)), field(kInputs), outputs, field(kName), field(kNames), IsTrue(field(kGroup)),
         &place);
    numbers = {IntegerOf(field(kReduceOp)), NumberOf(field(kPrescale)), NumberOf(field(kPostscale)),
               IsTrue(field(kWaitFollows))};
    operation->process_set = static_cast<uint32_t>(IntegerOf(field(kProcessSet)));
    operation->tag = IntegerOf(field(kTag));
    operation->first_ready_ns = LongOf(field(kFirstReadyNs));
    operation->patient = IsTrue(field(kPatient));
    wire::Signature& signature = operation->request.signature;
    signature.root = IntegerOf(field(kRoot));
    signature.priority = IntegerOf(field(kPriority));
    AssignText(field(kBackend), &signature.backend);
    AssignText(field(kLayers), &signature.layers);
    StatusOr<wire::DivideBy> divides = wire::ParseDivideBy(field(kDivideBy).cast<std::string_view>());
    ThrowIfError(divides.status());
    signature.divide_by = *divides;
    AwaitStream(operation, field(kInputs), place);
  } catch (...) {
    runtime.Recycle(operation);
    throw;
  }
  return SubmitOwned(operation, owner.release().ptr(), numbers.reduce_op, numbers.prescale, numbers.postscale,
                     numbers.wait_follows);
}

void PyRuntime::Fill(Operation* operation, int op, const py::sequence& inputs, const py::object& outputs,
                     const py::object& name, const py::object& names, bool group, Place* place) {
  if (op < 0 || op >= wire::kNumOps)
    ThrowIfError({StatusCode::kInvalidArgument, "there is no operation " + std::to_string(op)});
  wire::Signature& signature = operation->request.signature;
  signature.op = static_cast<wire::Op>(op);
  const size_t count = inputs.size();
  signature.tensors.resize(count);
  operation->tensors.resize(count);
  operation->allocate_results = outputs.is_none();
  signature.name.clear();
  signature.device_class = wire::DeviceClass::kCpu;
  if (!name.is_none()) AssignText(name, &signature.name);
  for (size_t i = 0; i < count; ++i) {
    const py::object output = outputs.is_none() ? py::object() : py::object(outputs[py::int_(i)]);
    FillTensor(operation, i, inputs[i], output, place);
    if (names.is_none()) {
      runtime::NameMember(i, group, &signature);
    } else {
      AssignText(names[py::int_(i)], &signature.tensors[i].name);
    }
  }
}

void PyRuntime::Describe(size_t index, Operation* operation) {
  runtime::DescribeTensor(index, view_.dtype, view_.shape, view_.data, operation);
  operation->request.signature.device_class = view_.place.device_class;
}

// One copy of the tensors' bytes goes through one device's streams.
void PyRuntime::CheckPlace(const Place& place, const std::string& which) const {
  if (view_.place == place) return;
  ThrowIfError(InvalidArgumentError(which + " is " + PlaceName(view_.place) + ", tensor 0 is " + PlaceName(place) +
                                    "; all tensors of an operation, and their results, must be in one place."));
}

// CUDA tensors are read when their stream has computed them.
void PyRuntime::AwaitStream(Operation* operation, const py::sequence& inputs, const Place& place) {
  if (operation->request.signature.device_class != wire::DeviceClass::kCuda) return;
  void* stream = nullptr;
  ThrowIfError(caster_.CurrentStream(py::object(inputs[0]).ptr(), place.device, &stream));
  ThrowIfError(Get().AwaitStream(operation, place.device, stream));
}

void PyRuntime::FillTensor(Operation* operation, size_t index, const py::object& input, const py::object& output,
                           Place* place) {
  ThrowIfError(caster_.Read(input.ptr(), &view_));
  Describe(index, operation);
  if (index == 0) *place = view_.place;
  CheckPlace(*place, "tensor " + std::to_string(index));
  if (!output || output.is_none()) return;
  if (output.ptr() != input.ptr()) ThrowIfError(caster_.Read(output.ptr(), &view_));
  CheckPlace(*place, "output " + std::to_string(index));
  if (!view_.writable)
    ThrowIfError({StatusCode::kInvalidArgument, "output " + std::to_string(index) + " is read-only"});
  ThrowIfError(runtime::SetOutput(index, view_.dtype, view_.count, view_.data, operation));
}

int64_t PyRuntime::SubmitOwned(Operation* operation, PyObject* owner, int reduce_op, double prescale, double postscale,
                               bool wait_follows) {
  wire::Signature& signature = operation->request.signature;
  signature.reduce_op = static_cast<wire::ReduceOp>(reduce_op);
  signature.prescale = prescale;
  signature.postscale = postscale;
  operation->owner = owner;
  if (const Status status = Get().Submit(operation, wait_follows); !status.ok()) {
    Py_DECREF(owner);
    ThrowIfError(status);
  }
  return operation->handle;
}

// ---- process sets

int64_t PyRuntime::ProposeSet(uint32_t number, std::vector<int> ranks) {
  int64_t handle = -1;
  ThrowIfError(Get().ProposeSet(number, std::move(ranks), &handle));
  return handle;
}

void PyRuntime::DeclareSet(uint32_t number, std::vector<int> ranks) {
  ThrowIfError(Get().DeclareSet(number, std::move(ranks)));
}

int64_t PyRuntime::ProposeRemoval(uint32_t number) {
  int64_t handle = -1;
  ThrowIfError(Get().ProposeRemoval(number, &handle));
  return handle;
}

void PyRuntime::ConnectSet(uint32_t number) {
  CallPatiently([number, &runtime = Get()](const auto& go_on) { return runtime.ConnectSet(number, go_on); });
}

void PyRuntime::OpenSet(uint32_t number) {
  CallPatiently([number, &runtime = Get()](const auto&) { return runtime.OpenSet(number); });
}

void PyRuntime::LeaveSet(uint32_t number) {
  CallPatiently([number, &runtime = Get()](const auto& go_on) { return runtime.LeaveSet(number, go_on); });
}

void PyRuntime::DropSet(uint32_t number) {
  CallPatiently([number, &runtime = Get()](const auto&) { return runtime.DropSet(number); });
}

void PyRuntime::StartTimeline(const std::string& path, bool mark_rounds) {
  ThrowIfError(Get().StartTimeline(path, mark_rounds));
}

void PyRuntime::StopTimeline() {
  runtime::Runtime& runtime = Get();
  const py::gil_scoped_release released;  // it writes the pending records
  runtime.StopTimeline();
}

// Called by the driving thread, without the GIL, when a device is done with tensors of a program that may not call this
// library for a while: the memory of all gradients must not stay until the next backward pass.
void PyRuntime::AskToDropOwners() {
  if (exiting || asked_to_drop.exchange(true)) return;
  if (Py_AddPendingCall(&PyRuntime::DropOwnersOfAll, nullptr) != 0) asked_to_drop = false;
}

// Called by the main thread, with the GIL.
int PyRuntime::DropOwnersOfAll(void*) {
  asked_to_drop = false;
  if (getpid() != process) return 0;
  try {
    for (PyRuntime* const runtime : std::set<PyRuntime*>(live)) {
      if (live.contains(runtime) && runtime->runtime_ != nullptr) runtime->DropFinishedOwners();
    }
  } catch (const std::bad_alloc&) {  // a later call drops them
  }
  return 0;
}

void PyRuntime::DropFinishedOwners() {
  std::vector<void*> owners = std::exchange(owners_, {});  // a finalizer may call this function again
  runtime_->TakeOwners(&owners);
  for (void* owner : owners) Py_DECREF(static_cast<PyObject*>(owner));
  owners.clear();
  owners_ = std::move(owners);
}

}  // namespace horocache::python
