#include "testing/fake_device_backend.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "data/fusion_buffer.h"
#include "data/row_layout.h"
#include "data/validate.h"
#include "testing/fake_device.h"

namespace horocache::testing {
namespace {

using data::Backend;
using data::Collective;
using data::CollectiveTask;
using data::DataCounters;
using data::FusionBuffer;
using data::Segment;
using data::VariableOutput;

class FakeDeviceTask;

// The state that the operations of the backend share. They use the fusion buffer one after the other.
struct FakeDeviceQueue {
  std::shared_ptr<FakeDevice> device;
  std::unique_ptr<Backend> host;
  FusionBuffer buffer;
  std::deque<FakeDeviceTask*> waiting;
  DataCounters counters;
  Status broken;                       // why no further operation can run; OK while they can
  std::unique_ptr<FakeStream> stream;  // the last member: its destructor waits for work that uses the other members
};

class FakeDeviceTask : public CollectiveTask {
 public:
  FakeDeviceTask(FakeDeviceQueue* queue, Collective collective, bool joined)
      : queue_(*queue),
        collective_(std::move(collective)),
        element_bytes_(static_cast<int64_t>(DTypeBytes(collective_.dtype))),
        joined_(joined) {
    for (const Segment& segment : collective_.segments) total_ += segment.count;
    ++queue_.counters.operations;
    queue_.counters.payload_bytes += static_cast<uint64_t>(total_ * element_bytes_);
    queue_.waiting.push_back(this);
  }

  ~FakeDeviceTask() override {
    if (state_ == State::kDone) return;
    std::erase(queue_.waiting, this);
    if (event_ == nullptr) return;
    // Abandoned while the device may copy from or to the caller's tensors. This waits for the running copy and drops
    // the others.
    queue_.stream.reset();
  }

  bool Test() override {
    bool moved = false;
    while (state_ != State::kDone && queue_.waiting.front()->Step()) moved = true;
    progressed_ = moved || (inner_ != nullptr && inner_->progressed());
    return state_ == State::kDone;
  }

  Status status() const override { return status_; }
  bool progressed() const override { return progressed_; }
  observe::Phase phase() const override {
    switch (state_) {
      case State::kReady:
        return observe::Phase::kWaitForData;
      case State::kPacking:
        return observe::Phase::kPack;
      case State::kRunning:
        return observe::Phase::kTransfer;
      default:
        return observe::Phase::kUnpack;
    }
  }
  void AddWaitingFor(std::vector<int>* ranks) const override {
    if (inner_ != nullptr) inner_->AddWaitingFor(ranks);
  }

 private:
  enum class State { kReady, kPacking, kRunning, kUnpacking, kDone };

  // True if the state changed.
  bool Step() {
    switch (state_) {
      case State::kReady:
        return WaitReady();
      case State::kPacking:
        return event_->Ready() && Run();
      case State::kRunning:
        return inner_->Test() && Unpack();
      case State::kUnpacking:
        return event_->Ready() && Finish(Status::Ok());
      case State::kDone:
        break;
    }
    return false;
  }

  bool WaitReady();
  bool Run();
  bool Unpack();
  bool Finish(Status status);

  FakeDeviceQueue& queue_;
  Collective collective_;
  const int64_t element_bytes_;
  const bool joined_;
  int64_t total_ = 0;
  State state_ = State::kReady;
  bool progressed_ = false;
  std::unique_ptr<data::Event> event_;
  std::unique_ptr<CollectiveTask> inner_;
  VariableOutput host_output_;
  FusionBuffer host_result_;
  int64_t host_result_bytes_ = -1;  // -1: this operation allocates no result
  Status status_;
};

bool FakeDeviceTask::WaitReady() {
  if (collective_.ready != nullptr && !collective_.ready->Ready()) return false;
  if (queue_.stream == nullptr) queue_.stream = std::make_unique<FakeStream>(queue_.device);
  if (!queue_.broken.ok()) return Finish(queue_.broken);
  if (const Status room = queue_.buffer.Reserve(joined_ ? 0 : total_ * element_bytes_); !room.ok()) {
    queue_.broken = room;  // the other ranks wait for this rank in the collective, so the job cannot go on
    return Finish(room);
  }
  if (!joined_) {
    queue_.stream->Enqueue([this] { queue_.buffer.Pack(collective_.segments, element_bytes_); });
    queue_.counters.bytes_copied += static_cast<uint64_t>(total_ * element_bytes_);
  }
  event_ = queue_.stream->Record();
  state_ = State::kPacking;
  return true;
}

bool FakeDeviceTask::Run() {
  Collective inner = collective_;
  inner.device_class = wire::DeviceClass::kCpu;
  inner.ready = nullptr;
  inner.algorithm = 0;
  inner.segments.clear();
  std::byte* const staged = joined_ ? nullptr : queue_.buffer.data();
  if (!collective_.segments.empty()) inner.segments.push_back({staged, staged, total_});
  if (collective_.output != nullptr) {
    host_output_.allocate = [this](int64_t bytes) -> StatusOr<std::byte*> {
      host_result_bytes_ = bytes;
      if (Status reserved = host_result_.Reserve(std::max<int64_t>(bytes, 1)); !reserved.ok()) return reserved;
      return host_result_.data();
    };
    inner.output = &host_output_;
  }
  event_.reset();
  inner_ = queue_.host->Start(std::move(inner));
  state_ = State::kRunning;
  return true;
}

bool FakeDeviceTask::Unpack() {
  const Status ran = inner_->status();
  inner_.reset();
  if (!ran.ok()) return Finish(ran);
  if (collective_.output != nullptr) {
    collective_.output->rows = host_output_.rows;
    if (host_result_bytes_ >= 0) {
      StatusOr<std::byte*> memory = collective_.output->allocate(host_result_bytes_);
      if (!memory.ok()) return Finish(memory.status());
      queue_.stream->Enqueue([this, to = *memory] {
        if (host_result_bytes_ > 0) std::memcpy(to, host_result_.data(), static_cast<size_t>(host_result_bytes_));
      });
      queue_.counters.bytes_copied += static_cast<uint64_t>(host_result_bytes_);
    }
  } else if (!joined_) {
    queue_.stream->Enqueue([this] { queue_.buffer.Unpack(collective_.segments, element_bytes_); });
    queue_.counters.bytes_copied += static_cast<uint64_t>(total_ * element_bytes_);
  }
  event_ = queue_.stream->Record();
  state_ = State::kUnpacking;
  return true;
}

bool FakeDeviceTask::Finish(Status status) {
  status_ = std::move(status);
  event_.reset();
  state_ = State::kDone;
  queue_.waiting.pop_front();
  return true;
}

// Threads: the driving thread; the copies run on the device's thread. Owns its stream and its host backend.
class FakeDeviceBackend : public Backend {
 public:
  FakeDeviceBackend(std::unique_ptr<Backend> host, int rank, int ranks, std::shared_ptr<FakeDevice> device)
      : rank_(rank), ranks_(ranks) {
    queue_.device = std::move(device);
    queue_.host = std::move(host);
  }

  const control::BackendTraits& traits() const override { return traits_; }
  Status Supports(const Collective& collective) const override {
    return data::CheckCollective(collective, traits_, ranks_);
  }

  std::unique_ptr<CollectiveTask> Start(Collective collective) override {
    const bool joined = data::HasJoined(collective, rank_);
    return std::make_unique<FakeDeviceTask>(&queue_, std::move(collective), joined);
  }

  const DataCounters& counters() const override { return queue_.counters; }
  Status broken() const override { return queue_.broken.ok() ? queue_.host->broken() : queue_.broken; }

 private:
  const int rank_;
  const int ranks_;
  const control::BackendTraits traits_ = {.name = "fakedevice",
                                          .ops = data::AllCollectives(),
                                          .device_classes = 1u << static_cast<int>(wire::DeviceClass::kFake),
                                          .algorithms = {"staged"}};
  FakeDeviceQueue queue_;
};

}  // namespace

StatusOr<std::unique_ptr<Backend>> MakeFakeDeviceBackend(const data::SharedArea& memory,
                                                         const data::BackendOptions& options, int64_t delay_ns) {
  auto backends = data::MakeBackends(memory, options);
  if (!backends.ok()) return backends.status();
  auto device = std::make_shared<FakeDevice>(delay_ns, [ring = memory.ring, rank = memory.rank] {
    if (ring) ring(rank);
  });
  auto& host = memory.size == 1 ? backends->back() : backends->front();
  return std::unique_ptr<Backend>(
      std::make_unique<FakeDeviceBackend>(std::move(host), memory.rank, memory.size, std::move(device)));
}

}  // namespace horocache::testing
