#include "data/backends/nccl/link.h"

#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/text.h"

namespace horocache::data {
namespace {

constexpr int64_t kQuietNapNs = 20'000;

}  // namespace

NcclLink::NcclLink(std::unique_ptr<Backend> host, int rank, int ranks, const BackendOptions& options)
    : host_(std::move(host)),
      rank_(rank),
      ranks_(ranks),
      options_(options),
      messages_connected_(static_cast<size_t>(ranks) + 1) {}

NcclLink::~NcclLink() {
  try {
    if (connecting_messages_ != nullptr)
      Break({StatusCode::kAborted, "NCCL was given up while it connected the ranks"});
    if (!broken_.ok()) AwaitQuiet();
  } catch (const std::bad_alloc&) {  // this rank's part of the job ends anyway
    Break(NoMemoryError());          // needs no memory
  }
}

std::unique_ptr<CollectiveTask> NcclLink::StartOnHost(Collective part) {
  const DataCounters before = host_->counters();
  std::unique_ptr<CollectiveTask> task = host_->Start(std::move(part));
  on_host_.operations += host_->counters().operations - before.operations;
  on_host_.payload_bytes += host_->counters().payload_bytes - before.payload_bytes;
  return task;
}

// ---- connecting

bool NcclLink::Connect(int device, const control::RankNames* names) {
  if (connected_) return true;
  if (connector_ == nullptr) {
    const Status made = MakeStream(device);
    if (!made.ok()) {
      Break(made);
      return true;
    }
    connector_ = std::make_unique<NcclConnector>([this](Collective part) { return StartOnHost(std::move(part)); },
                                                 options_.nccl.library, device_,
                                                 NcclConnector::Place{rank_, ranks_, options_.nccl.name},
                                                 options_.nccl.timeout_ns, options_.nccl.window_bytes, names);
  }
  if (!connector_->Step()) return false;
  const std::unique_ptr<NcclConnector> ended = std::move(connector_);
  communicator_ = ended->Take();
  packing_ = ended->packing();
  window_ = ended->window();
  if (!ended->why_unpacked().ok() && options_.nccl.warn) {
    options_.nccl.warn("small CUDA tensors are not packed on any rank, because this one has no kernels for it: " +
                       Sentence(ended->why_unpacked().message()));
  }
  if (!ended->why_no_window().ok() && options_.nccl.window_bytes > 0 && options_.nccl.warn) {
    options_.nccl.warn(
        "packed CUDA tensors are in no window of NCCL (HOROCACHE_NCCL_WINDOW_BYTES), because this rank has none: " +
        Sentence(ended->why_no_window().message()));
  }
  connected_ = true;
  if (!host_->broken().ok()) {
    Break(host_->broken());
  } else if (!ended->outcome().ok()) {
    const std::string why = "NCCL cannot connect the ranks. " + Sentence(ended->outcome().message());
    refused_ = UnsupportedError(why + " HOROCACHE_NCCL=off does without NCCL.");
    if (falls_back() && rank_ == 0 && options_.nccl.warn) {
      options_.nccl.warn(why +
                         " CUDA tensors go by way of the host instead; HOROCACHE_NCCL=off leaves this warning out.");
    }
  }
  return true;
}

Status NcclLink::MakeStream(int device) {
  StatusOr<std::shared_ptr<cuda::Device>> opened = options_.devices->Get(device);
  if (!opened.ok()) return opened.status();
  device_ = std::move(*opened);
  const cuda::Device::Scope scope(*device_);
  HC_RETURN_IF_ERROR(scope.status());
  StatusOr<std::unique_ptr<cuda::Stream>> made = cuda::Stream::Make(device_);
  if (made.ok()) stream_ = std::move(*made);
  return made.status();
}

// ---- of a connected link

StatusOr<bool> NcclLink::ConnectMessages(int root) {
  const auto known = static_cast<size_t>(root + 1);
  if (!connecting_messages_ && (messages_connected_.front() || messages_connected_[known])) return true;
  if (connecting_messages_ == nullptr) {
    HC_RETURN_IF_ERROR(StartFirstMessages(root));
    return false;
  }
  if (!connecting_messages_->Returned()) {
    if (NowNs() < messages_deadline_ns_) return false;
    return Status(StatusCode::kAborted,
                  "NCCL did not connect the ranks for messages within " + SecondsText(options_.nccl.timeout_ns));
  }
  connecting_messages_.reset();
  HC_RETURN_IF_ERROR(first_messages_->status);
  messages_connected_[known] = true;
  return true;
}

// One byte between the root and each other rank, or between all ranks, in both directions.
Status NcclLink::StartFirstMessages(int root) {
  const cuda::Device::Scope scope(*device_);
  HC_RETURN_IF_ERROR(scope.status());
  StatusOr<std::byte*> bytes = Scratch(2 * int64_t{ranks_});
  if (!bytes.ok()) return bytes.status();
  first_messages_ = std::make_shared<FirstMessages>();
  messages_deadline_ns_ = NowNs() + options_.nccl.timeout_ns;
  stream_->Count(1);
  const auto send = [nccl = options_.nccl.library, comm = communicator_->handle(), stream = stream_->handle(),
                     memory = *bytes, rank = rank_, ranks = ranks_, root] {
    Status status = nccl->Check(nccl->GroupStart(), "ncclGroupStart", comm);
    if (!status.ok()) return status;
    for (int peer = 0; peer < ranks && status.ok(); ++peer) {
      if (peer == rank || (root >= 0 && rank != root && peer != root)) continue;
      status = nccl->Check(nccl->Send(memory + peer, 1, cuda::kNcclUint8, peer, comm, stream), "ncclSend", comm);
      if (status.ok()) {
        status =
            nccl->Check(nccl->Recv(memory + ranks + peer, 1, cuda::kNcclUint8, peer, comm, stream), "ncclRecv", comm);
      }
    }
    const Status ended = nccl->Check(nccl->GroupEnd(), "ncclGroupEnd", comm);
    return status.ok() ? ended : status;
  };
  try {
    connecting_messages_ = std::make_unique<LimitedCall>(
        "hc-nccl-pairs", [send, scratch = scratch_, device = device_, outcome = first_messages_] {
          outcome->status = NoMemoryError();  // until it has ended well
          const cuda::Device::Scope within(*device);
          outcome->status = within.status().ok() ? send() : within.status();
        });
  } catch (const std::system_error& error) {
    return {StatusCode::kAborted, std::string("cannot start a thread: ") + error.what()};
  }
  return Status::Ok();
}

StatusOr<std::byte*> NcclLink::Scratch(int64_t bytes) {
  if (bytes > scratch_bytes_) {
    if (scratch_ != nullptr) HC_RETURN_IF_ERROR(scratch_->NoteUses(stream_.get()));
    StatusOr<std::shared_ptr<cuda::DeviceBuffer>> made = cuda::DeviceBuffer::Make(device_, bytes, stream_.get());
    if (!made.ok()) return made.status();
    scratch_ = std::move(*made);
    scratch_bytes_ = scratch_->bytes();
  }
  return scratch_->data();
}

// ---- the end of work

Status NcclLink::AsyncError() {
  if (connecting_messages_ != nullptr) return Status::Ok();  // another thread uses the communicator
  Status error = communicator_->AsyncError();
  if (error.ok()) {
    error_since_ns_ = 0;
    return error;
  }
  if (error_since_ns_ == 0) error_since_ns_ = NowNs();
  return NowNs() - error_since_ns_ < kGraceNs ? Status::Ok() : error;
}

void NcclLink::Break(const Status& why) {
  if (quiet_deadline_ns_ != 0) return;
  quiet_deadline_ns_ = DeadlineNs(kPatienceSeconds);
  connector_.reset();
  if (communicator_ != nullptr) communicator_->StartAbort();
  try {
    broken_ = why;
  } catch (const std::bad_alloc&) {
    broken_ = NoMemoryError();
  }
}

bool NcclLink::Quiet() {
  if (stream_ == nullptr || quiet_deadline_ns_ == 0) return true;
  const bool called = connecting_messages_ != nullptr && !connecting_messages_->Returned();
  if (!called && (communicator_ == nullptr || communicator_->AbortedBy(0))) {
    const cuda::Device::Scope scope(*device_);
    if (!scope.status().ok() || stream_->idle()) return true;
  }
  if (NowNs() < quiet_deadline_ns_) return false;
  gave_up_ = true;
  static_cast<void>(communicator_.release());
  static_cast<void>(stream_.release());
  tables_.GiveUp();
  if (scratch_ != nullptr) scratch_->GiveUp();
  given_up_ = {StatusCode::kAborted, "CUDA device " + std::to_string(device_->number()) +
                                         " did not end its work within " +
                                         SecondsText(static_cast<int64_t>(kPatienceSeconds * kNsPerS)) +
                                         " and may still write into tensors: end the process"};
  return true;
}

void NcclLink::AwaitQuiet() {
  while (!Quiet()) Nap(kQuietNapNs);
}

}  // namespace horocache::data
