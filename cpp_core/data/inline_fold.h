// The fold of an inline allreduce: the data of all ranks came with the round, so every rank folds it by itself.
//
// The result has the same bits as from the shm backend (same kernels, rank order and scaling), and errors are the same.
//
// Threads: the driving thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "data/kernels/fold.h"
#include "wire/message.h"

namespace horocache::data {

class InlineFold {
 public:
  // `kernels` must never be destroyed, which holds for all kernel sets.
  explicit InlineFold(const KernelSet* kernels) : kernels_(kernels) {}

  // `contributions`: the ranks' data in rank order, the same number of words for each rank; a rank's tensors lie one
  // after the other. `bytes`: data bytes of one rank, which is also the number of bytes stored in `result`.
  Status Run(const wire::Signature& signature, int ranks, int divisor_ranks, std::span<const uint64_t> contributions,
             int64_t bytes, std::byte* result);

 private:
  const KernelSet* const kernels_;
  std::vector<const std::byte*> inputs_;
};

}  // namespace horocache::data
