// The allreduce of an operation that rode on its round: all ranks' data is at hand, so it is one fold.
//
// Gives the bits of the shm backend: the same kernels, rank order and scaling; and its errors.
//
// Role: lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "data/kernels/fold.h"
#include "wire/message.h"

namespace horocache::data {

class RideFold {
 public:
  // The kernels live for ever.
  explicit RideFold(const KernelSet* kernels) : kernels_(kernels) {}

  // `contributions`: the tensors of each rank, one after the other, in rank order, each rank's in as many words.
  // `bytes`: of one rank's. Stores as many into `result`.
  Status Run(const wire::Signature& signature, int ranks, int divisor_ranks, std::span<const uint64_t> contributions,
             int64_t bytes, std::byte* result);

 private:
  const KernelSet* const kernels_;
  std::vector<const std::byte*> inputs_;
};

}  // namespace horocache::data
