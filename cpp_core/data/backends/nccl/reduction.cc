#include "data/backends/nccl/reduction.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>

#include "data/kernels/widen.h"

namespace horocache::data {
namespace {

std::optional<cuda::NcclOperation> OperationOf(wire::ReduceOp operation) {
  switch (operation) {
    case wire::ReduceOp::kSum:
    case wire::ReduceOp::kAverage:
      return 0;
    case wire::ReduceOp::kProduct:
      return 1;
    case wire::ReduceOp::kMax:
      return 2;
    case wire::ReduceOp::kMin:
      return 3;
    default:
      return std::nullopt;
  }
}

bool Sums(const Collective& collective) {
  return collective.reduce_op == wire::ReduceOp::kSum || collective.reduce_op == wire::ReduceOp::kAverage;
}

// A number as an element of a dtype: NCCL reads a factor in the type of the data.
std::array<std::byte, sizeof(double)> Element(DType dtype, double number) {
  std::array<std::byte, sizeof(double)> element = {};
  const auto single = static_cast<float>(number);
  if (dtype == DType::kFloat64) {
    std::memcpy(element.data(), &number, sizeof number);
  } else if (dtype == DType::kFloat32) {
    std::memcpy(element.data(), &single, sizeof single);
  } else {
    Narrow(dtype, reinterpret_cast<const std::byte*>(&single), element.data(), 1);
  }
  return element;
}

}  // namespace

bool NcclReduction::Computes(const Collective& collective, int ranks, bool deterministic) {
  if (deterministic || !cuda::NcclTypeOf(collective.dtype) || !OperationOf(collective.reduce_op)) return false;
  // Factors are for sums of floating-point numbers: NCCL would round a factor for integers.
  if (Sums(collective)) return IsFloat(collective.dtype) || Factor(collective, ranks) == 1.0;
  return collective.prescale == 1.0 && collective.postscale == 1.0;
}

double NcclReduction::Factor(const Collective& collective, int ranks) {
  if (!Sums(collective)) return 1.0;
  const double scale = collective.prescale * collective.postscale;
  return collective.reduce_op == wire::ReduceOp::kAverage ? scale / collective.Divisor(ranks) : scale;
}

Status NcclReduction::Make(const cuda::Nccl& nccl, cuda::NcclCommHandle comm, const Collective& collective,
                           double factor) {
  operation_ = plain_ = *OperationOf(collective.reduce_op);
  if (factor == 1.0) return Status::Ok();
  auto element = Element(collective.dtype, factor);
  const cuda::NcclResult result = nccl.RedOpCreatePreMulSum(
      &operation_, element.data(), *cuda::NcclTypeOf(collective.dtype), cuda::kNcclScalarOnHost, comm);
  HC_RETURN_IF_ERROR(nccl.Check(result, "ncclRedOpCreatePreMulSum", comm));
  made_ = true;
  return Status::Ok();
}

Status NcclReduction::Destroy(const cuda::Nccl& nccl, cuda::NcclCommHandle comm) const {
  return made_ ? nccl.Check(nccl.RedOpDestroy(operation_, comm), "ncclRedOpDestroy", comm) : Status::Ok();
}

}  // namespace horocache::data
