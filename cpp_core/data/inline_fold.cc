#include "data/inline_fold.h"

#include "base/dtype.h"

namespace horocache::data {

Status InlineFold::Run(const wire::Signature& signature, int ranks, int divisor_ranks,
                       std::span<const uint64_t> contributions, int64_t bytes, std::byte* result) {
  const DType dtype = signature.tensors[0].dtype;
  HC_RETURN_IF_ERROR(CheckFold(dtype, signature.reduce_op, {signature.prescale, signature.postscale}));
  const size_t words = contributions.size() / static_cast<size_t>(ranks);
  inputs_.clear();
  for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
    inputs_.push_back(reinterpret_cast<const std::byte*>(&contributions[rank * words]));
  }
  FoldCall call;
  call.inputs = inputs_.data();
  call.num_inputs = ranks;
  call.count = bytes / static_cast<int64_t>(DTypeBytes(dtype));
  call.output = result;
  call.scaling = MakeScaling(dtype, signature.reduce_op, signature.prescale, signature.postscale, divisor_ranks);
  const FloatMode mode;
  Fold(kernels_->Find(dtype, signature.reduce_op), dtype, call);
  return Status::Ok();
}

}  // namespace horocache::data
