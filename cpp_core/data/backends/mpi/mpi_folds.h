// The MPI_Op of every reduction: MPI's own where its arithmetic is ours, else one made of our fold kernels.
//
// MPI has no float16, bfloat16 or bool of one byte, and leaves open what its minimum makes of a NaN. Sums of 8 and 16
// bits that are too large end at the largest number in Open MPI's vector code and wrap around elsewhere (seen
// in 5.0.11: 200 + 200 in uint8 is 255 for the first elements of an array and 144 for the last); here they always wrap
// around.
//
// Role: lanes. Owns the operations that it made.
#pragma once

#include <array>

#include "base/dtype.h"
#include "base/status.h"
#include "data/kernels/fold.h"
#include "net/mpi/mpi.h"

namespace horocache::data {

class MpiFolds {
 public:
  explicit MpiFolds(net::Mpi* mpi) : mpi_(mpi) {}
  ~MpiFolds();
  MpiFolds(const MpiFolds&) = delete;
  MpiFolds& operator=(const MpiFolds&) = delete;

  // For a fold that is defined (CheckFold). Average is a sum.
  StatusOr<net::MpiOp> Find(DType dtype, wire::ReduceOp op);

 private:
  net::Mpi* const mpi_;
  std::array<std::array<net::MpiOp, wire::kNumReduceOps>, kNumDTypes> made_ = {};
};

}  // namespace horocache::data
