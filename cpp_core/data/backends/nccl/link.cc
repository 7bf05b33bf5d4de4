#include "data/backends/nccl/link.h"

#include <new>
#include <utility>

#include "base/clock.h"
#include "base/text.h"

namespace horocache::data {
namespace {

constexpr int64_t kQuietNapNs = 20'000;

}  // namespace

NcclLink::NcclLink(std::unique_ptr<Backend> host, int rank, int ranks, const BackendOptions& options)
    : host_(std::move(host)), rank_(rank), ranks_(ranks), options_(options) {}

NcclLink::~NcclLink() {
  try {
    if (!broken_.ok()) AwaitQuiet();
  } catch (const std::bad_alloc&) {  // without memory this rank's part of the job ends anyway
  }
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
    connector_ = std::make_unique<NcclConnector>(host_.get(), options_.nccl.library, device_,
                                                 NcclConnector::Place{rank_, ranks_, options_.nccl.name},
                                                 options_.nccl.timeout_ns, names);
  }
  if (!connector_->Step()) return false;
  const std::unique_ptr<NcclConnector> ended = std::move(connector_);
  communicator_ = ended->Take();
  connecting_ = ended->counters();
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

// ---- the end of work

Status NcclLink::AsyncError() {
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
  if (communicator_ == nullptr || communicator_->AbortedBy(0)) {
    const cuda::Device::Scope scope(*device_);
    if (!scope.status().ok() || stream_->idle()) return true;
  }
  if (NowNs() < quiet_deadline_ns_) return false;
  static_cast<void>(communicator_.release());
  static_cast<void>(stream_.release());
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
