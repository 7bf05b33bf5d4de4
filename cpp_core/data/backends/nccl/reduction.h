// The reduction of a collective as an operation of NCCL.
//
// Threads: the driving thread.
#pragma once

#include "base/status.h"
#include "cuda/nccl.h"
#include "data/backend.h"

namespace horocache::data {

class NcclReduction {
 public:
  // True if NCCL can compute the collective's reduction with the results that users expect; equal on all ranks.
  static bool Computes(const Collective& collective, int ranks, bool deterministic);

  // The factor of each input of a sum or an average; 1 for other reductions.
  static double Factor(const Collective& collective, int ranks);

  // Requires Computes. `factor`: of each input; NCCL is to multiply with it.
  Status Make(const cuda::Nccl& nccl, cuda::NcclCommHandle comm, const Collective& collective, double factor);
  // After the calls that use it; what they have queued may still run.
  Status Destroy(const cuda::Nccl& nccl, cuda::NcclCommHandle comm) const;

  // With the factor, and without it.
  cuda::NcclOperation operation() const { return operation_; }
  cuda::NcclOperation plain() const { return plain_; }

 private:
  cuda::NcclOperation operation_ = 0, plain_ = 0;
  bool made_ = false;  // it is not one of those that NCCL has
};

}  // namespace horocache::data
