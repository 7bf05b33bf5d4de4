#include "data/backends/staged/task.h"

#include <algorithm>
#include <new>

#include "base/clock.h"
#include "base/text.h"
#include "data/row_layout.h"

namespace horocache::data {
namespace {

constexpr int64_t kCopyCharge = 16 << 10;  // of the budget: the call that queues a copy takes 3 us
constexpr int64_t kNapNs = 20'000;

}  // namespace

// ---- StagedQueue

StatusOr<Staging*> StagedQueue::StagingOf(int device) {
  if (const auto found = stagings_.find(device); found != stagings_.end() && found->second != nullptr)
    return found->second.get();
  StatusOr<std::shared_ptr<cuda::Device>> opened = devices_->Get(device);
  if (!opened.ok()) return opened.status();
  StatusOr<std::unique_ptr<Staging>> made = Staging::Make(std::move(*opened));
  if (!made.ok()) return made.status();
  return (stagings_[device] = std::move(*made)).get();
}

std::unique_ptr<CollectiveTask> StagedQueue::StartPart(Collective part) {
  const DataCounters before = host_->counters();
  std::unique_ptr<CollectiveTask> task = host_->Start(std::move(part));
  parts.operations += host_->counters().operations - before.operations;
  parts.payload_bytes += host_->counters().payload_bytes - before.payload_bytes;
  return task;
}

void StagedQueue::Quiesce(Staging* staging) {
  const int64_t deadline_ns = DeadlineNs(kPatienceSeconds);
  const cuda::Device::Scope scope(*staging->device);
  while (!staging->from_device->idle() || !staging->to_device->idle()) {
    if (NowNs() >= deadline_ns) {
      const int device = staging->device->number();
      static_cast<void>(stagings_[device].release());
      try {
        Break({StatusCode::kAborted, "CUDA device " + std::to_string(device) + " did not end its copies within " +
                                         SecondsText(static_cast<int64_t>(kPatienceSeconds * kNsPerS))});
      } catch (const std::bad_alloc&) {  // without memory this rank's part of the job ends anyway
      }
      return;
    }
    Nap(kNapNs);
  }
}

// ---- StagedTask

StagedTask::StagedTask(StagedQueue* queue, Collective collective, int rank, int size)
    : QueuedTask(queue, std::move(collective), rank, size),
      queue_(*queue),
      has_data_(!HasJoined(collective_, rank)),
      in_(&collective_.segments, static_cast<size_t>(element_bytes_)),
      out_(&collective_.segments, static_cast<size_t>(element_bytes_)) {
  for (const Segment& segment : collective_.segments) total_ += segment.count;
}

StagedTask::~StagedTask() {
  if (!finished_ && staging_ != nullptr) queue_.Quiesce(staging_);
}

bool StagedTask::Step(int64_t* budget) {
  if (!ready_) return GetReady();
  if (staging_ == nullptr) return Work(budget);
  const cuda::Device::Scope scope(*staging_->device);
  if (!scope.status().ok()) return Break(scope.status());
  try {
    return Work(budget);
  } catch (const std::bad_alloc&) {  // ends this rank's part of the job, and the caller gets its memory back
    queue_.Quiesce(staging_);
    throw;
  }
}

bool StagedTask::GetReady() {
  if (collective_.ready != nullptr && !collective_.ready->Ready()) return false;
  ready_ = true;
  if (!has_data_ || total_ == 0) return true;
  const StatusOr<Staging*> staging = queue_.StagingOf(collective_.device);
  if (!staging.ok()) return Break(staging.status());
  staging_ = *staging;
  return true;
}

bool StagedTask::CopyIn(Staging::Slot* slot, int64_t begin, int64_t end, int64_t* at, int64_t* budget) {
  const int64_t first = *at;
  while (*at < end && *budget > 0) {
    in_.Seek(*at);
    const int64_t run = in_.Run(end - *at);
    std::byte* const to = slot->memory->data() + (*at - begin) * element_bytes_;
    if (in_.input() != nullptr && run > 0) {
      const Status copied = staging_->from_device->CopyToHost(to, in_.input(), run * element_bytes_);
      if (!copied.ok()) return Break(copied);
      queue_.counters.bytes_copied += static_cast<uint64_t>(run * element_bytes_);
    }
    *budget -= kCopyCharge;
    *at += run;
  }
  if (*at < end) return *at > first;
  const Status recorded = staging_->from_device->Record(&slot->arrived);
  return recorded.ok() || Break(recorded);
}

bool StagedTask::CopyOut(Staging::Slot* slot, int64_t begin, int64_t end, int64_t* at, bool moved_only,
                         int64_t* budget) {
  const int64_t first = *at;
  while (*at < end && *budget > 0) {
    out_.Seek(*at);
    const int64_t run = out_.Run(end - *at);
    const std::byte* const from = slot->memory->data() + (*at - begin) * element_bytes_;
    std::byte* const to = out_.output();
    if (to != nullptr && run > 0 && !(moved_only && to == out_.input())) {
      const Status copied = staging_->to_device->CopyFromHost(to, from, run * element_bytes_);
      if (!copied.ok()) return Break(copied);
      queue_.counters.bytes_copied += static_cast<uint64_t>(run * element_bytes_);
    }
    *budget -= kCopyCharge;
    *at += run;
  }
  if (*at < end) return *at > first;
  const Status recorded = staging_->to_device->Record(&slot->left);
  return recorded.ok() || Break(recorded);
}

bool StagedTask::Happened(const cuda::Event& event) {
  const StatusOr<bool> happened = event.Happened();
  if (!happened.ok()) Break(happened.status());
  return happened.ok() && *happened;
}

Collective StagedTask::PartForHost() {
  std::vector<Segment> segments = std::exchange(collective_.segments, {});  // not copied
  Collective part = collective_;
  collective_.segments = std::move(segments);
  part.device_class = wire::DeviceClass::kCpu;
  part.ready = nullptr;
  return part;
}

bool StagedTask::Break(const Status& why) {
  queue_.Break({why.code(), collective_.Rank(rank()) + ": " + why.message()});
  if (staging_ != nullptr) queue_.Quiesce(staging_);
  Finish(queue_.broken());
  return false;
}

void StagedTask::Finish(Status status) {
  status_ = std::move(status);
  finished_ = true;
}

observe::Phase StagedTask::phase() const {
  if (!ready_) return observe::Phase::kWaitForData;
  return part_ != nullptr ? observe::Phase::kTransfer : observe::Phase::kPack;
}

void StagedTask::AddWaitingFor(std::vector<int>* ranks) const {
  if (part_ != nullptr) part_->AddWaitingFor(ranks);
}

std::string StagedTask::Details() const {
  if (!ready_) {
    return "\n  CUDA device " + std::to_string(collective_.device) +
           " has not come to the tensor yet: the work before it on its stream has not ended";
  }
  return part_ != nullptr ? part_->Details() : std::string();
}

// ---- an operation on memory of the host

namespace {

class HostTask : public QueuedTask {
 public:
  HostTask(StagedQueue* queue, Collective collective, int rank, int size)
      : QueuedTask(queue, std::move(collective), rank, size), queue_(*queue) {}

  bool must_poll() const override { return task_ != nullptr && task_->must_poll(); }
  observe::Phase phase() const override { return task_ != nullptr ? task_->phase() : observe::Phase::kWaitForData; }
  void AddWaitingFor(std::vector<int>* ranks) const override {
    if (task_ != nullptr) task_->AddWaitingFor(ranks);
  }
  std::string Details() const override { return task_ != nullptr ? task_->Details() : std::string(); }

 private:
  bool Step(int64_t* budget) override {
    if (task_ == nullptr) task_ = queue_.StartPart(collective_);
    finished_ = task_->Test();
    if (finished_) status_ = task_->status();
    *budget = 0;  // the host's task has a budget of its own
    return finished_ || task_->progressed();
  }
  bool Finished() const override { return finished_; }

  StagedQueue& queue_;
  std::unique_ptr<CollectiveTask> task_;
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<CollectiveTask> MakeHostTask(StagedQueue* queue, Collective collective, int rank, int size) {
  return std::unique_ptr<CollectiveTask>(new (queue) HostTask(queue, std::move(collective), rank, size));
}

}  // namespace horocache::data
