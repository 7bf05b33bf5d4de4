// One operation of the mpi backend, and what the operations of a lane share.
//
// Note [MPI from one thread at a time]
// All calls of one communicator are made by the holder of the lanes' role, in the agreed order, so collectives are
// issued in the same order on all ranks. Nothing here waits: an operation starts requests, tests them, and goes on when
// they are complete. MPI moves nothing by itself, so an operation that is under way has to be tested again and again.
//
// Note [Messages between hosts]
// A library sends a large message only when the receiver has said that it is there. Over TCP that word waits behind
// what its own rank sends at the same time, so two ranks that exchange large messages send one after the other: at half
// the speed of the network. Between hosts data therefore travels as messages that are small enough to be sent at once
// (64 KiB with Open MPI), and only so many of them are under way that they do not pile up where nobody takes them yet.
//
// Role: lanes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/backend.h"
#include "data/backends/mpi/mpi_folds.h"
#include "data/backends/mpi/two_level.h"
#include "data/backends/queued_operation.h"
#include "data/fusion_buffer.h"
#include "data/kernels/fold.h"
#include "net/mpi/communicator.h"
#include "net/mpi/mpi_process.h"

namespace horocache::data {

struct MpiQueue final : OperationQueue {
  MpiQueue(MpiMeans* means, const BackendOptions& options, const KernelSet* kernel_set);

  net::Mpi& mpi() const { return comm.mpi(); }
  bool OneHost() const {
    return std::ranges::all_of(host_of, [this](int host) { return host == host_of[0]; });
  }
  // Hosts of one rank each.
  bool OneRankPerHost() const { return levels != nullptr && !levels->worthwhile; }
  // Elements of one message to or from a rank. See Note [Messages between hosts].
  int64_t MessageElements(int peer, int64_t element_bytes) const;

  net::Communicator comm;
  const std::vector<int> host_of;  // by rank
  const KernelSet* const kernels;
  const int64_t max_count;  // elements of one call
  MpiFolds folds;
  FusionBuffer buffers[2];            // for pieces under way
  FusionBuffer received[2];           // from other ranks, to be folded
  FusionBuffer sink;                  // for what this rank has no memory for
  std::unique_ptr<TwoLevels> levels;  // null on one host

 private:
  // What is under way reads and writes the caller's memory, and cannot be taken back: the process is to end.
  void OnBroken() override {
    comm.Abandon();
    net::LeaveMpiUnfinalized();
  }
};

class MpiOperation : public QueuedOperation {
 public:
  bool must_poll() const final { return true; }

 protected:
  MpiOperation(MpiQueue* queue, Collective collective);

  // A subclass's Step calls it at the end.
  void Finish(Status status);
  bool Finished() const final { return ended_; }

  // Requests of this rank: started by what gets Next(), complete when RequestsDone() says so.
  net::MpiRequest* NextRequest();
  // Finishes the operation if a call failed, and the lane with it: the ranks are out of step then.
  bool Started(const Status& status);
  // False while some are under way; forgets them when all are complete.
  bool RequestsDone();
  // One of several that are under way on their own; as RequestsDone.
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

// Where partial sums are kept in 16 bits, what the sum is scaled by is applied to its parts: an average of what the
// type can hold does not overflow then.
bool ScalesFirst(const Collective& collective);

// allreduce, reduce, broadcast: by MPI's own collectives, piece by piece.
std::unique_ptr<MpiOperation> MakeMpiPieces(MpiQueue* queue, Collective collective);
// allreduce, reduce: exchanges slices, folds them in rank order, and sends the results round.
std::unique_ptr<MpiOperation> MakeMpiAllFold(MpiQueue* queue, Collective collective);
// reducescatter: the same without the last part.
std::unique_ptr<MpiOperation> MakeMpiReducescatter(MpiQueue* queue, Collective collective);
// allgather, gather, alltoall, scatter, and barrier; an allgather of so many bytes in two levels.
std::unique_ptr<MpiOperation> MakeMpiExchange(MpiQueue* queue, Collective collective, int64_t two_levels_from_bytes);

}  // namespace horocache::data
