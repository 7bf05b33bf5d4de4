#include "data/backends/nccl/connector.h"

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/text.h"

namespace horocache::data {
namespace {

std::string NoThread(const std::system_error& error) { return std::string("cannot start a thread: ") + error.what(); }

}  // namespace

NcclConnector::NcclConnector(StartOnHost start, std::shared_ptr<const cuda::Nccl> nccl,
                             std::shared_ptr<cuda::Device> device, Place place, int64_t limit_ns, int64_t window_bytes,
                             const control::RankNames* names)
    : start_(std::move(start)),
      nccl_(std::move(nccl)),
      device_(std::move(device)),
      place_(std::move(place)),
      limit_ns_(limit_ns),
      window_bytes_(window_bytes),
      names_(names) {}

NcclConnector::~NcclConnector() {
  if (communicator_ == nullptr) return;
  // Freeing memory may take long.
  const bool has_memory = allocated_ != nullptr && preparing_ != nullptr && preparing_->Returned();
  if (has_memory && allocated_->memory.ok()) communicator_->Keep(std::move(*allocated_->memory));
  communicator_->StartAbort();
}

bool NcclConnector::Step() {
  progressed_ = false;
  return (this->*step_)();
}

void NcclConnector::Next(bool (NcclConnector::*step)()) {
  step_ = step;
  deadline_ns_ = 0;
  progressed_ = true;
}

// ---- 1. the id

bool NcclConnector::MakeId() {
  if (place_.rank != 0) {
    Next(&NcclConnector::SendId);
    return false;
  }
  if (making_ == nullptr) {
    deadline_ns_ = NowNs() + limit_ns_;
    made_ = std::make_shared<Invitation>();
    kNoMemory.copy(made_->why_not.text, kReasonBytes - 1);  // until it has ended well
    try {
      // It opens a socket, and may ask for names of hosts.
      making_ = std::make_unique<LimitedCall>("hc-nccl-id", [made = made_, nccl = nccl_] {
        const Status status = nccl->Check(nccl->GetUniqueId(&made->id), "ncclGetUniqueId");
        made->why_not = {};
        status.message().copy(made->why_not.text, kReasonBytes - 1);
      });
    } catch (const std::system_error& error) {
      NoThread(error).copy(made_->why_not.text, kReasonBytes - 1);
    }
  }
  if (making_ == nullptr || making_->Returned()) {
    invitation_ = *made_;
  } else if (NowNs() >= deadline_ns_) {
    const std::string late = "ncclGetUniqueId did not return within " + SecondsText(limit_ns_);
    late.copy(invitation_.why_not.text, kReasonBytes - 1);
  } else {
    return false;
  }
  making_.reset();
  Next(&NcclConnector::SendId);
  return false;
}

bool NcclConnector::SendId() {
  const StatusOr<bool> done = Run(wire::Op::kBroadcast, DType::kUint8, 0, &invitation_, sizeof invitation_);
  if (!done.ok() || !*done) return !done.ok() && End(done.status());
  if (invitation_.why_not.text[0] != '\0') return EndWith(0, invitation_.why_not);
  Next(&NcclConnector::Connect);
  return false;
}

// ---- 2. connecting

bool NcclConnector::Connect() {
  if (deadline_ns_ == 0) {
    deadline_ns_ = NowNs() + limit_ns_;
    try {
      communicator_ = std::make_unique<cuda::NcclCommunicator>(nccl_, device_, invitation_.id, place_);
    } catch (const std::system_error& error) {
      own_ = {StatusCode::kAborted, NoThread(error)};
    }
  }
  bool late = false;
  if (communicator_ != nullptr) {
    if (communicator_->HasConnected()) {
      own_ = communicator_->connected();
    } else if (NowNs() >= deadline_ns_) {
      late = true;
      own_ = {StatusCode::kAborted, "NCCL did not connect the ranks within " + SecondsText(limit_ns_)};
    } else {
      return false;
    }
  }
  votes_.failed = VoteOf(own_, late);
  Next(own_.ok() ? &NcclConnector::Compile : &NcclConnector::Compare);
  return false;
}

int32_t NcclConnector::VoteOf(const Status& own, bool late) const {
  if (own.ok()) return 2 * place_.ranks;
  return late ? place_.ranks + place_.rank : place_.rank;
}

// ---- 3. the kernels, and memory for a window

// The driver may let a call wait for the device's work, and other calls for it; so NCCL does not connect meanwhile.
// True once `call` has returned, with its outcome in *status.
bool NcclConnector::RunLimited(const char* name, const std::function<void()>& call, Status* status) {
  const int64_t limit_ns = std::min(limit_ns_, kMostPrepareNs);
  if (preparing_ == nullptr) {
    deadline_ns_ = NowNs() + limit_ns;
    try {
      preparing_ = std::make_unique<LimitedCall>(name, call);
    } catch (const std::system_error& error) {
      *status = {StatusCode::kAborted, NoThread(error)};
      return true;
    }
  }
  if (!preparing_->Returned()) {
    if (NowNs() < deadline_ns_) return false;
    *status = {StatusCode::kAborted, "the driver did not return within " + SecondsText(limit_ns)};
  }
  preparing_.reset();
  return true;
}

bool NcclConnector::Compile() {
  if (compiled_ == nullptr) compiled_ = std::make_shared<Compiled>();
  const auto compile = [compiled = compiled_, device = device_] {
    const cuda::Device::Scope scope(*device);
    if (scope.status().ok()) compiled->kernels = device->Packing();
  };
  if (!RunLimited("hc-cuda-compile", compile, &why_unpacked_)) return false;
  if (why_unpacked_.ok()) why_unpacked_ = compiled_->kernels.status();
  if (why_unpacked_.ok()) packing_ = *compiled_->kernels;
  votes_.has_kernels = packing_ != nullptr ? 1 : 0;
  // The window is for packed tensors, so it is of no use without the kernels.
  Next(window_bytes_ > 0 && packing_ != nullptr ? &NcclConnector::Allocate : &NcclConnector::Compare);
  return false;
}

bool NcclConnector::Allocate() {
  if (allocated_ == nullptr) allocated_ = std::make_shared<Allocated>();
  const auto allocate = [allocated = allocated_, device = device_, nccl = nccl_, bytes = window_bytes_] {
    const cuda::Device::Scope scope(*device);
    if (scope.status().ok()) allocated->memory = cuda::NcclMemory::Make(nccl, device, bytes);
  };
  if (!RunLimited("hc-nccl-memory", allocate, &why_no_window_)) return false;
  if (!why_no_window_.ok()) {
    allocated_.reset();  // the thread frees what comes late: that may wait for the device
  } else {
    why_no_window_ = allocated_->memory.status();
    if (why_no_window_.ok()) {
      window_ = allocated_->memory->get();
      communicator_->Keep(std::move(*allocated_->memory));
      votes_.has_window = 1;
    }
  }
  Next(&NcclConnector::Compare);
  return false;
}

// ---- 4. the outcome

bool NcclConnector::Compare() {
  const StatusOr<bool> done = Run(wire::Op::kAllreduce, DType::kInt32, -1, &votes_, sizeof votes_ / sizeof(int32_t));
  if (!done.ok() || !*done) return !done.ok() && End(done.status());
  if (votes_.has_kernels == 0) packing_ = nullptr;
  if (votes_.has_window == 0) window_ = nullptr;
  if (votes_.failed != 2 * place_.ranks) {
    // A rank that cannot register lets the others wait for it: it is the cause, and not they.
    const bool some_cannot = votes_.cannot_register < place_.ranks && votes_.failed >= place_.ranks;
    if (some_cannot) votes_.failed = votes_.cannot_register;
    if (some_cannot && place_.rank == votes_.failed) own_ = why_no_window_;
    votes_.failed %= place_.ranks;
    own_.message().copy(reason_.text, kReasonBytes - 1);
    Next(&NcclConnector::Tell);
    return false;
  }
  if (registers_ || votes_.has_window == 0) return End(Status::Ok());
  Next(&NcclConnector::Register);
  return false;
}

bool NcclConnector::Tell() {
  const StatusOr<bool> done = Run(wire::Op::kBroadcast, DType::kUint8, votes_.failed, &reason_, sizeof reason_);
  if (!done.ok() || !*done) return !done.ok() && End(done.status());
  return EndWith(votes_.failed, reason_);
}

// ---- 5. the window

bool NcclConnector::Register() {
  if (!registers_) {
    registers_ = true;
    deadline_ns_ = NowNs() + limit_ns_;
    try {
      communicator_->StartRegistering();
    } catch (const std::system_error& error) {
      own_ = {StatusCode::kAborted, NoThread(error)};
    }
  }
  bool late = false;
  if (own_.ok()) {
    if (communicator_->HasRegistered()) {
      why_no_window_ = communicator_->registered();
    } else if (NowNs() >= deadline_ns_) {
      late = true;
      own_ = {StatusCode::kAborted, "NCCL did not register the ranks' windows within " + SecondsText(limit_ns_)};
    } else {
      return false;
    }
  }
  votes_.failed = VoteOf(own_, late);
  votes_.has_window = own_.ok() && why_no_window_.ok() ? 1 : 0;
  votes_.cannot_register = why_no_window_.ok() ? place_.ranks : place_.rank;
  Next(&NcclConnector::Compare);
  return false;
}

StatusOr<bool> NcclConnector::Run(wire::Op op, DType dtype, int root, void* memory, int64_t count) {
  if (task_ == nullptr) {
    Collective collective;
    collective.op = op;
    collective.reduce_op = wire::ReduceOp::kMin;
    collective.dtype = dtype;
    collective.root = root;
    collective.names = names_;
    collective.segments.push_back({static_cast<std::byte*>(memory), static_cast<std::byte*>(memory), count});
    task_ = start_(std::move(collective));
  }
  if (!task_->Test()) {
    progressed_ = task_->progressed();
    return false;
  }
  const std::unique_ptr<CollectiveTask> ended = std::move(task_);
  if (!ended->status().ok()) return ended->status();
  return true;
}

bool NcclConnector::EndWith(int rank, const Reason& reason) {
  const std::string_view whole(reason.text, kReasonBytes);
  Collective names;
  names.names = names_;
  const std::string text = PrintableLines(whole.substr(0, whole.find('\0')));
  return End({StatusCode::kUnsupported, names.Rank(rank) + ": " + text});
}

bool NcclConnector::End(Status outcome) {
  outcome_ = std::move(outcome);
  if (!outcome_.ok() && communicator_ != nullptr) {
    communicator_->StartAbort();  // also where it has connected: the other ranks do without it
    communicator_.reset();
  }
  progressed_ = true;
  return true;
}

void NcclConnector::AddWaitingFor(std::vector<int>* ranks) const {
  if (task_ != nullptr) task_->AddWaitingFor(ranks);
}

std::string NcclConnector::Details() const {
  if (step_ == &NcclConnector::Connect) return "\n  NCCL connects the ranks";
  if (step_ == &NcclConnector::Compile) return "\n  the driver compiles the packing kernels";
  if (step_ == &NcclConnector::Allocate) return "\n  NCCL allocates memory for a window";
  return step_ == &NcclConnector::Register ? "\n  NCCL registers the ranks' windows" : std::string();
}

}  // namespace horocache::data
