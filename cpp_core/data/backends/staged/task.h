// Collectives on tensors of a CUDA device, by a backend for memory of the host.
//
// Note [Staging]
// Operations that fuse work element by element, so that a part of the tensors is a collective of its own. The tensors
// are cut into tiles, as if they were one array. A tile is copied from the device into a slot of pinned memory, is
// reduced there in place by the host's backend, and is copied back; with three slots, the copies of both directions run
// while the host reduces. All ranks cut alike, because the number of elements and the tile's size are equal on all.
//
// Operations on rows need the whole tensor at once. It is copied to the host by way of the slots, and the host's
// backend runs the operation once. Its result stays in memory of the host: the caller has allocated it.
//
// The streams have copies alone, which begin once the tensors are ready, so that a copy ends soon, whatever the program
// runs. An operation is finished when its last copy to the device has ended: then the result is there for every stream,
// and the caller's memory is no longer in use.
//
// Threads: the driving thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/backend.h"
#include "data/backends/queued_task.h"
#include "data/backends/segment_cursor.h"
#include "data/backends/staged/staging.h"
#include "data/fusion_buffer.h"

namespace horocache::data {

// The state that the operations of the backend share.
class StagedQueue : public TaskQueue {
 public:
  StagedQueue(std::unique_ptr<Backend> host, std::shared_ptr<cuda::Devices> devices, int64_t tile_bytes)
      : host_(std::move(host)), devices_(std::move(devices)), tile_bytes_(tile_bytes) {}

  Backend& host() const { return *host_; }
  int64_t tile_bytes() const { return tile_bytes_; }
  bool idle() const { return head() == nullptr; }
  StatusOr<Staging*> StagingOf(int device);
  // Starts a part of an operation on the host. It does not count as an operation.
  std::unique_ptr<CollectiveTask> StartPart(Collective part);
  // Makes sure that no copy writes to memory of a caller any more, or gives up after kPatienceSeconds: then the staging
  // is never freed, and the queue is broken.
  void Quiesce(Staging* staging);

  DataCounters parts;  // of the host's counters: the parts of operations
  FusionBuffer rows;   // the tensor of an operation on rows

 private:
  static constexpr double kPatienceSeconds = 2;

  const std::unique_ptr<Backend> host_;
  const std::shared_ptr<cuda::Devices> devices_;
  const int64_t tile_bytes_;
  std::map<int, std::unique_ptr<Staging>> stagings_;  // by device
};

// The part that operations of both kinds share.
class StagedTask : public QueuedTask {
 public:
  bool must_poll() const override { return part_ == nullptr || part_->must_poll() || copying_; }
  observe::Phase phase() const override;
  void AddWaitingFor(std::vector<int>* ranks) const override;
  std::string Details() const override;

 protected:
  StagedTask(StagedQueue* queue, Collective collective, int rank, int size);
  ~StagedTask() override;

  bool Step(int64_t* budget) final;
  bool Finished() const final { return finished_; }
  // Does a part of the work, with the device's context; true if anything moved.
  virtual bool Work(int64_t* budget) = 0;

  // Copies the elements from *at on, of those before `end`, into the slot, which begins with the element `begin`;
  // records the event after the last. True if anything moved. An error breaks the queue.
  bool CopyIn(Staging::Slot* slot, int64_t begin, int64_t end, int64_t* at, int64_t* budget);
  // The other way. A segment without an output is left out, and with `moved_only` one whose output is its input.
  bool CopyOut(Staging::Slot* slot, int64_t begin, int64_t end, int64_t* at, bool moved_only, int64_t* budget);
  bool Happened(const cuda::Event& event);
  // The collective as a part for the host, without its tensors.
  Collective PartForHost();
  void Start(Collective part) { part_ = queue_.StartPart(std::move(part)); }
  // Ends the operation on this rank alone, and so the job.
  bool Break(const Status& why);
  void Finish(Status status);

  StagedQueue& queue_;
  const bool has_data_;         // false on a rank that has joined
  Staging* staging_ = nullptr;  // null while the operation waits, and on a rank without data
  int64_t total_ = 0;           // elements
  std::unique_ptr<CollectiveTask> part_;
  bool copying_ = false;  // copies are under way whose end the operation waits for

 private:
  bool GetReady();

  bool ready_ = false;
  bool finished_ = false;
  SegmentCursor in_, out_;
};

std::unique_ptr<CollectiveTask> MakeStagedTiles(StagedQueue* queue, Collective collective, int rank, int size);
std::unique_ptr<CollectiveTask> MakeStagedRows(StagedQueue* queue, Collective collective, int rank, int size);
// An operation on memory of the host that has to wait for operations on devices.
std::unique_ptr<CollectiveTask> MakeHostTask(StagedQueue* queue, Collective collective, int rank, int size);

}  // namespace horocache::data
