// The MPI_Op of each reduction: MPI's own op where its arithmetic equals that of the fold kernels, else a user-defined
// op that calls a fold kernel.
//
// MPI has no float16, bfloat16 or one-byte bool, and does not define how its minimum and maximum treat a NaN. Sums of
// 8-bit and 16-bit integers that overflow saturate in Open MPI's vector code and wrap elsewhere (seen in 5.0.11:
// 200 + 200 in uint8 is 255 for the first elements of an array and 144 for the last); the fold kernels always wrap.
//
// Threads: the driving thread. Owns the ops that it created.
#pragma once

#include <array>

#include "base/dtype.h"
#include "base/status.h"
#include "data/kernels/fold.h"
#include "net/mpi/mpi.h"

namespace horocache::data {

class MpiReduceOps {
 public:
  explicit MpiReduceOps(net::Mpi* mpi) : mpi_(mpi) {}
  ~MpiReduceOps();
  MpiReduceOps(const MpiReduceOps&) = delete;
  MpiReduceOps& operator=(const MpiReduceOps&) = delete;

  // The op of a reduction, created on first use. The fold must be defined (CheckFold). kAverage gives a sum.
  StatusOr<net::MpiOp> Find(DType dtype, wire::ReduceOp op);

 private:
  net::Mpi* const mpi_;
  std::array<std::array<net::MpiOp, wire::kNumReduceOps>, kNumDTypes> made_ = {};
};

}  // namespace horocache::data
