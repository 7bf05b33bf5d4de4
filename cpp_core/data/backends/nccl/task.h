// One operation that NCCL runs on the device.
//
// It is one group of calls, so one launch. The operation is launched once the ranks are connected, and done when the
// event behind its calls has happened. Between the two, later operations may be launched behind it.
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
#include "data/backends/nccl/reduction.h"

namespace horocache::data {

class NcclTask : public CollectiveTask, public Pooled {
 public:
  // True if NCCL can run the collective with the results that users expect; equal on all ranks.
  static bool Runs(const Collective& collective, int ranks, bool deterministic);

  // Breaks the link if the operation is not done: then the set ends, and its memory returns to the caller.
  ~NcclTask() override;

  bool Test() override;
  Status status() const override { return on_host_ != nullptr ? on_host_->status() : status_; }
  bool progressed() const override { return progressed_; }
  bool launched() const override { return launched_ && link_.broken().ok(); }
  int queued() const override { return queued_; }
  std::shared_ptr<const cuda::Event> on_device() const override { return ended_; }
  bool must_poll() const override { return on_host_ == nullptr || on_host_->must_poll(); }
  observe::Phase phase() const override;
  void AddWaitingFor(std::vector<int>* ranks) const override;
  std::string Details() const override;
  std::vector<Segment> TakeSegments() override;

 protected:
  NcclTask(NcclLink* link, Collective collective);

  // Does a bounded part of what the ranks need to know before the launch; true once that is all. The operation may be
  // Done instead.
  virtual bool Prepare() { return true; }
  // Queues the operation on the link's stream. Runs in a Scope of the device.
  virtual Status QueueAll() = 0;
  // Queues the group of calls. `factor`: with which NCCL multiplies the inputs of a reduction.
  Status QueueGroup(double factor);
  // The calls, between the group's start and its end.
  virtual Status QueueCalls(const NcclReduction& reduction) = 0;
  bool Done(Status status);

  NcclLink& link_;
  Collective collective_;
  const int64_t element_bytes_;
  int64_t total_ = 0;                           // elements
  std::shared_ptr<cuda::DeviceBuffer> result_;  // of an operation on rows that has elements; until it is launched
  bool progressed_ = false;
  Status status_;

 private:
  bool Begin();
  bool TestEnd();
  bool EndBroken();
  // If the device was given up, it may still use the result.
  void GiveUpResult() noexcept;
  Status Launch();

  std::unique_ptr<CollectiveTask> on_host_;  // of the backend for the host, where NCCL is refused
  cuda::Event started_;                      // behind the wait for the tensors; empty if they were ready
  std::shared_ptr<cuda::Event> ended_;
  bool waits_for_tensors_ = false;
  bool launched_ = false;  // the device may use the tensors
  bool done_ = false;
  int queued_ = 0;
  unsigned tests_ = 0;
};

// Operations of several tensors at once.
std::unique_ptr<CollectiveTask> MakeNcclFused(NcclLink* link, Collective collective);
// Operations on the rows of one tensor.
std::unique_ptr<CollectiveTask> MakeNcclRows(NcclLink* link, Collective collective);

}  // namespace horocache::data
