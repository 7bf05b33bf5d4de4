#include "data/backends/mpi/reduce_ops.h"

#include <utility>

namespace horocache::data {
namespace {

using wire::ReduceOp;

// The function of a user-defined MPI_Op. MPI passes only the elements, so each pair of type and operation has a
// function of its own. It uses the best kernels of this processor, even if the job selects others: all kernel sets give
// the same bits.
template <DType kType, ReduceOp kOp>
void FoldTwo(void* in, void* inout, int* count, void*) {
  static const FoldFunction function = (*FindKernels("auto"))->Find(kType, kOp);
  const FloatMode mode;
  const std::byte* inputs[] = {static_cast<const std::byte*>(in), static_cast<const std::byte*>(inout)};
  FoldCall call;
  call.inputs = inputs;
  call.num_inputs = 2;
  call.count = *count;
  call.output = static_cast<std::byte*>(inout);
  Fold(function, kType, call);
}

template <DType kType>
net::MpiFold FunctionOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return &FoldTwo<kType, ReduceOp::kSum>;
    case ReduceOp::kMin:
      return &FoldTwo<kType, ReduceOp::kMin>;
    case ReduceOp::kMax:
      return &FoldTwo<kType, ReduceOp::kMax>;
    case ReduceOp::kProduct:
      return &FoldTwo<kType, ReduceOp::kProduct>;
    case ReduceOp::kAnd:
      return &FoldTwo<kType, ReduceOp::kAnd>;
    case ReduceOp::kOr:
      return &FoldTwo<kType, ReduceOp::kOr>;
    case ReduceOp::kXor:
      return &FoldTwo<kType, ReduceOp::kXor>;
    case ReduceOp::kAdasum:
      break;
  }
  return nullptr;
}

net::MpiFold FunctionOf(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kFloat16:
      return FunctionOf<DType::kFloat16>(op);
    case DType::kBfloat16:
      return FunctionOf<DType::kBfloat16>(op);
    case DType::kFloat32:
      return FunctionOf<DType::kFloat32>(op);
    case DType::kFloat64:
      return FunctionOf<DType::kFloat64>(op);
    case DType::kBool:
      return FunctionOf<DType::kBool>(op);
    case DType::kUint8:
      return FunctionOf<DType::kUint8>(op);
    case DType::kInt8:
      return FunctionOf<DType::kInt8>(op);
    case DType::kInt16:
      return FunctionOf<DType::kInt16>(op);
    case DType::kUint16:
      return FunctionOf<DType::kUint16>(op);
    default:
      return nullptr;
  }
}

bool NeedsCustomOp(DType dtype, ReduceOp op) {
  if (dtype == DType::kFloat16 || dtype == DType::kBfloat16 || dtype == DType::kBool) return true;
  if (IsInteger(dtype) && DTypeBytes(dtype) <= 2) return op == ReduceOp::kSum || op == ReduceOp::kAverage;
  return IsFloat(dtype) && (op == ReduceOp::kMin || op == ReduceOp::kMax);
}

net::MpiReduction ReductionOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return net::MpiReduction::kMin;
    case ReduceOp::kMax:
      return net::MpiReduction::kMax;
    case ReduceOp::kProduct:
      return net::MpiReduction::kProduct;
    case ReduceOp::kAnd:
      return net::MpiReduction::kAnd;
    case ReduceOp::kOr:
      return net::MpiReduction::kOr;
    case ReduceOp::kXor:
      return net::MpiReduction::kXor;
    default:
      return net::MpiReduction::kSum;
  }
}

}  // namespace

MpiReduceOps::~MpiReduceOps() {
  if (mpi_->Finalized()) return;
  for (auto& row : made_) {
    for (net::MpiOp& op : row) {
      // No call uses the op any more, so an error from the library has no consequence.
      if (op.handle != 0) static_cast<void>(mpi_->FreeOp(&op));
    }
  }
}

StatusOr<net::MpiOp> MpiReduceOps::Find(DType dtype, ReduceOp op) {
  if (!NeedsCustomOp(dtype, op)) return mpi_->OpOf(ReductionOf(op));
  net::MpiOp& made = made_[static_cast<size_t>(dtype)][static_cast<size_t>(op)];
  if (made.handle == 0) {
    StatusOr<net::MpiOp> fresh = mpi_->MakeOp(FunctionOf(dtype, op));
    if (!fresh.ok()) return fresh;
    made = *fresh;
  }
  return made;
}

}  // namespace horocache::data
