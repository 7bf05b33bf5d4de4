// One operation that NCCL runs on the device: allreduce, reduce or broadcast.
//
// All its tensors are one group of calls, so one launch. The operation is launched once the ranks are connected, and
// done when the event behind its calls has happened. Between the two, later operations may be launched behind it.
//
// Threads: the driving thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/block_pool.h"
#include "cuda/device.h"
#include "data/backend.h"
#include "data/backends/nccl/link.h"

namespace horocache::data {

class NcclTask : public CollectiveTask, public Pooled {
 public:
  // True if NCCL can compute the collective with the results that users expect; equal on all ranks.
  static bool Runs(const Collective& collective, int ranks, bool deterministic);

  NcclTask(NcclLink* link, Collective collective);
  // Breaks the link if the operation is not done: then the set ends, and its memory returns to the caller.
  ~NcclTask() override;

  bool Test() override;
  Status status() const override { return on_host_ != nullptr ? on_host_->status() : status_; }
  bool progressed() const override { return progressed_; }
  bool launched() const override { return launched_ && link_.broken().ok(); }
  std::shared_ptr<const cuda::Event> on_device() const override { return ended_; }
  bool must_poll() const override { return on_host_ == nullptr || on_host_->must_poll(); }
  observe::Phase phase() const override;
  void AddWaitingFor(std::vector<int>* ranks) const override;
  std::string Details() const override;
  std::vector<Segment> TakeSegments() override;

 private:
  bool Begin();
  bool TestEnd();
  bool EndBroken();
  // Queues the operation on the link's stream.
  Status Launch();
  Status QueueAll();
  Status QueueOne(const Segment& segment, cuda::NcclOperation operation);
  bool Done(Status status);

  NcclLink& link_;
  Collective collective_;
  const int64_t element_bytes_;
  int64_t total_ = 0;                        // elements
  std::unique_ptr<CollectiveTask> on_host_;  // of the backend for the host, where NCCL is refused
  cuda::Event started_;                      // behind the wait for the tensors; empty if they were ready
  std::shared_ptr<cuda::Event> ended_;
  bool waits_for_tensors_ = false;
  bool launched_ = false;  // the device may use the tensors
  bool done_ = false;
  bool progressed_ = false;
  unsigned tests_ = 0;
  Status status_;
};

}  // namespace horocache::data
