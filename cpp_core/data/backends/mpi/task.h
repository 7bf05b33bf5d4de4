// The base class of the mpi backend's operations, and the queue that the operations of a lane share.
//
// Note [MPI from one thread at a time]
// Only the driving thread calls MPI on a lane's communicator, in the agreed order, so all ranks issue collectives in
// the same order. No call waits: an operation starts requests, tests them, and continues when they are complete. MPI
// makes progress only inside calls, so an operation that is under way must be tested again and again.
//
// Note [Messages between hosts]
// An MPI library sends a large message only after the receiver has answered that it is ready. Over TCP this answer
// waits behind the data that the receiver sends at the same time, so two ranks that exchange large messages send one
// after the other, at half the speed of the network. Between hosts data therefore travels in messages that are small
// enough to be sent without an answer (64 KiB with Open MPI). The number of messages under way is limited, so that they
// do not pile up at a receiver that is not ready for them.
//
// Threads: the driving thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/backend.h"
#include "data/backends/mpi/reduce_ops.h"
#include "data/backends/mpi/two_level.h"
#include "data/backends/queued_task.h"
#include "data/fusion_buffer.h"
#include "data/kernels/fold.h"
#include "net/mpi/communicator.h"
#include "net/mpi/mpi_process.h"

namespace horocache::data {

struct MpiQueue final : TaskQueue {
  MpiQueue(MpiResources* resources, const BackendOptions& options, const KernelSet* kernel_set);

  net::Mpi& mpi() const { return comm.mpi(); }
  bool OneHost() const {
    return std::ranges::all_of(host_of, [this](int host) { return host == host_of[0]; });
  }
  // True on several hosts with one rank each.
  bool OneRankPerHost() const { return levels != nullptr && !levels->has_multi_rank_host; }
  // The most elements of one message to or from `peer`. See Note [Messages between hosts].
  int64_t MessageElements(int peer, int64_t element_bytes) const;

  net::Communicator comm;
  const std::vector<int> host_of;  // by rank: the index of its host
  const KernelSet* const kernels;
  const int64_t max_count;  // the most elements of one MPI call
  MpiReduceOps folds;
  FusionBuffer buffers[2];            // packed pieces under way
  FusionBuffer received[2];           // slices from other ranks, to be folded
  FusionBuffer sink;                  // receives a result that this rank has no memory for
  std::unique_ptr<TwoLevels> levels;  // null on one host

 private:
  // MPI may still read and write the caller's memory for requests under way, which cannot be cancelled. So the process
  // must end.
  void OnBroken() override {
    comm.Abandon();
    net::LeaveMpiUnfinalized();
  }
};

class MpiTask : public QueuedTask {
 public:
  bool must_poll() const final { return true; }

 protected:
  MpiTask(MpiQueue* queue, Collective collective);

  // Ends the operation with `status`.
  void Finish(Status status);
  bool Finished() const final { return ended_; }

  // A new request of this operation, for an MPI call to start; RequestsDone() tests it. The pointer is valid until the
  // next call.
  net::MpiRequest* NextRequest();
  // Returns status.ok(). A failed MPI call leaves the ranks out of step: Started then ends the operation and breaks the
  // queue.
  bool Started(const Status& status);
  // True if all requests from NextRequest() are complete, and then forgets them; false while one is under way. A
  // request that fails counts as complete, and ends the operation as Started does.
  bool RequestsDone();
  // The same for a single request that the subclass owns.
  bool RequestDone(net::MpiRequest* request);

  net::Mpi& mpi() const { return queue_.mpi(); }
  net::MpiComm comm() const { return queue_.comm.get(); }
  net::MpiType type() const { return queue_.mpi().TypeOf(collective_.dtype); }
  int64_t total() const { return total_; }  // elements of all segments

  void Move(std::byte* to, const std::byte* from, int64_t bytes, int64_t* budget);

  MpiQueue& queue_;

 private:
  int64_t total_ = 0;
  std::vector<net::MpiRequest> requests_;
  bool ended_ = false;
};

// True if the scaling of the result must be applied to its addends: partial sums of 16-bit floats are kept in 16 bits,
// where the sum can overflow although the average is representable.
bool ScalesFirst(const Collective& collective);

// allreduce, reduce, broadcast by MPI's own collectives, piece by piece.
std::unique_ptr<MpiTask> MakeMpiPieces(MpiQueue* queue, Collective collective);
// allreduce, reduce: the ranks exchange slices, fold them in rank order, and exchange the results.
std::unique_ptr<MpiTask> MakeMpiAllFold(MpiQueue* queue, Collective collective);
// reducescatter: the ranks exchange slices and fold them in rank order.
std::unique_ptr<MpiTask> MakeMpiReducescatter(MpiQueue* queue, Collective collective);
// allgather, gather, alltoall, scatter and barrier. An allgather of at least `two_levels_from_bytes` bytes (counting
// all ranks) runs in two levels.
std::unique_ptr<MpiTask> MakeMpiExchange(MpiQueue* queue, Collective collective, int64_t two_levels_from_bytes);

}  // namespace horocache::data
