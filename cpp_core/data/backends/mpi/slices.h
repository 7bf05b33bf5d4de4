// The base class of reductions by slices: every rank owns one slice. It sends each other rank the elements of that
// rank's slice, receives the elements of its own slice from all ranks, and folds them in rank order.
//
// Threads: the driving thread. See fold_allreduce.cc and mpi/reducescatter.cc for the operations.
#pragma once

#include <cstdint>
#include <vector>

#include "data/backends/mpi/task.h"

namespace horocache::data {

// Bytes of a tile: the slices of all ranks together.
inline constexpr int64_t kTileBytes = 4 << 20;

class MpiSlices : public MpiTask {
 protected:
  // The slice of one owner, in this rank's input.
  struct Slice {
    const std::byte* data = nullptr;
    int64_t count = 0;
  };
  // One exchange of slices and its fold.
  struct Exchange {
    std::vector<net::MpiRequest> requests;
    std::byte* received = nullptr;  // this rank's slice in the inputs of the other ranks, by rank
    int64_t stride_bytes = 0;       // from one rank's elements to those of the next
    int64_t folded = 0;             // elements folded so far
  };

  using MpiTask::MpiTask;

  // Starts the sends and receives. `slice_of(owner)` returns the slice that `owner` folds, of at most `most` elements.
  template <typename F>
  Status Start(Exchange* exchange, FusionBuffer* memory, int64_t most, F&& slice_of);
  Status Send(Exchange* exchange, const std::byte* from, int64_t count, int to, int tag);
  Status Receive(Exchange* exchange, std::byte* to, int64_t count, int from, int tag);
  // True if all requests of the exchange are complete.
  bool Complete(Exchange* exchange);
  // Folds a piece of this rank's slice into `output`; false if the whole slice was folded before.
  bool FoldSome(Exchange* exchange, const Slice& own, std::byte* output, int64_t* budget);

  // Room for the elements of one slice, received from `rank`.
  std::byte* From(const Exchange& exchange, int rank) const { return exchange.received + rank * exchange.stride_bytes; }

 private:
  static constexpr int kTag = 2;
  Status Reserve(Exchange* exchange, FusionBuffer* memory, int64_t most);
};

template <typename F>
Status MpiSlices::Start(Exchange* exchange, FusionBuffer* memory, int64_t most, F&& slice_of) {
  HC_RETURN_IF_ERROR(Reserve(exchange, memory, most));
  const int64_t own = slice_of(rank()).count;
  for (const int from : contributors()) {
    if (from != rank()) HC_RETURN_IF_ERROR(Receive(exchange, From(*exchange, from), own, from, kTag));
  }
  for (int i = 1; i < size() && !joined(rank()); ++i) {
    const int to = (rank() + i) % size();  // each rank starts with another peer
    const Slice slice = slice_of(to);
    HC_RETURN_IF_ERROR(Send(exchange, slice.data, slice.count, to, kTag));
  }
  return Status::Ok();
}

}  // namespace horocache::data
