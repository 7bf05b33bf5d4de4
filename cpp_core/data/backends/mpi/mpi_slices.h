// What reductions by slices have in common: every rank sends each other its part of that one's slice, and folds its own
// slice of all ranks in rank order.
//
// Role: lanes. Base of the operations that fold; see mpi_allfold.cc and mpi_reducescatter.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "data/backends/mpi/mpi_operation.h"

namespace horocache::data {

inline constexpr int64_t kTileBytes = 4 << 20;

class MpiSlices : public MpiOperation {
 protected:
  // A rank's slice in this rank's input.
  struct Slice {
    const std::byte* data = nullptr;
    int64_t count = 0;
  };
  // One exchange of slices and its fold.
  struct Exchange {
    std::vector<net::MpiRequest> requests;
    std::byte* received = nullptr;  // the others' parts of this rank's slice
    int64_t stride_bytes = 0;       // between them
    int64_t folded = 0;             // elements
  };

  using MpiOperation::MpiOperation;

  // Starts to send and to receive; `slice_of(owner)` is the slice that `owner` folds, of at most `most` elements.
  template <typename F>
  Status Start(Exchange* exchange, FusionBuffer* memory, int64_t most, F&& slice_of);
  Status Send(Exchange* exchange, const std::byte* from, int64_t count, int to, int tag);
  Status Receive(Exchange* exchange, std::byte* to, int64_t count, int from, int tag);
  // False while requests are under way.
  bool Complete(Exchange* exchange);
  // A part of the fold of this rank's slice into `output`; false when there is nothing left.
  bool FoldSome(Exchange* exchange, const Slice& own, std::byte* output, int64_t* budget);

  // Room for the elements of a slice: of a rank's input, until they are folded.
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
    const int to = (rank() + i) % size();  // not all to the same rank first
    const Slice slice = slice_of(to);
    HC_RETURN_IF_ERROR(Send(exchange, slice.data, slice.count, to, kTag));
  }
  return Status::Ok();
}

}  // namespace horocache::data
