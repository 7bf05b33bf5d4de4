#include "data/kernels/fold.h"

#include <bit>
#include <cmath>
#include <string>

#include "data/kernels/copy.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

namespace horocache::data {
namespace {

constexpr KernelSet kScalar("scalar", &kScalarTable);
#if defined(__x86_64__)
constexpr KernelSet kAvx2("avx2", &kAvx2Table);
constexpr KernelSet kAvx512("avx512", &kAvx512Table);

bool HasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool HasAvx2() { return __builtin_cpu_supports("avx2") && HasF16c(); }

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
bool HasAvx2() { return false; }
bool HasAvx512() { return false; }
constexpr KernelSet kAvx2 = kScalar;
constexpr KernelSet kAvx512 = kScalar;
#endif

bool IsBitwise(wire::ReduceOp op) {
  return op == wire::ReduceOp::kAnd || op == wire::ReduceOp::kOr || op == wire::ReduceOp::kXor;
}

std::string What(DType dtype, wire::ReduceOp op) {
  return std::string(wire::ReduceOpName(op)) + " of " + std::string(DTypeName(dtype));
}

}  // namespace

std::string_view BestKernels() { return HasAvx512() ? "avx512" : HasAvx2() ? "avx2" : "scalar"; }

StatusOr<const KernelSet*> FindKernels(std::string_view name) {
  if (name == "auto") name = BestKernels();
  if (name == "scalar") return &kScalar;
  if (name == "avx2" && HasAvx2()) return &kAvx2;
  if (name == "avx512" && HasAvx512()) return &kAvx512;
  if (name == "avx2" || name == "avx512") {
    return Status(StatusCode::kUnsupported, "kernels=" + std::string(name) +
                                                ": this processor does not have them; use kernels=auto, which is " +
                                                std::string(BestKernels()) + " here");
  }
  return Status(StatusCode::kInvalidArgument,
                "kernels=" + std::string(name) + " is not one of auto, scalar, avx2, avx512");
}

Status CheckFold(DType dtype, wire::ReduceOp op, const Scaling& scaling) {
  using wire::ReduceOp;
  if (op == ReduceOp::kAdasum) {
    return Status(StatusCode::kUnsupported, "adasum has no backend; use average or sum");
  }
  if (IsBitwise(op) && (IsFloat(dtype) || IsComplex(dtype))) {
    return Status(StatusCode::kUnsupported, What(dtype, op) + " is not defined; it is for integers and bool");
  }
  if (IsComplex(dtype) && (op == ReduceOp::kMin || op == ReduceOp::kMax)) {
    return Status(StatusCode::kUnsupported,
                  What(dtype, op) + " is not defined: complex numbers have no order; reduce a real tensor");
  }
  if (dtype == DType::kBool && op == ReduceOp::kAverage) {
    return Status(StatusCode::kUnsupported,
                  What(dtype, op) + " is not defined; use sum (any), product (all) or a cast");
  }
  if (dtype == DType::kBool && (scaling.before != 1.0 || scaling.after != 1.0)) {
    return Status(StatusCode::kUnsupported, What(dtype, op) + " takes no prescale or postscale; cast the tensor");
  }
  if (kScalarTable.functions[static_cast<size_t>(dtype)][static_cast<size_t>(op)] == nullptr) {
    return Status(StatusCode::kUnsupported, What(dtype, op) + " has no kernel");
  }
  return Status::Ok();
}

Scaling MakeScaling(DType dtype, wire::ReduceOp op, double prescale, double postscale, int ranks) {
  Scaling scaling{prescale, postscale, 1};
  if (op != wire::ReduceOp::kAverage) return scaling;
  const bool real = IsFloat(dtype) || IsComplex(dtype);
  if (real && (postscale != 1.0 || std::has_single_bit(static_cast<unsigned>(ranks)))) {
    scaling.after = postscale / ranks;
  } else {
    scaling.divisor = ranks;
  }
  return scaling;
}

void Fold(FoldFunction function, DType dtype, const FoldCall& call) {
  if (call.count <= 0) return;
  if (call.num_inputs > 1 || !call.scaling.none()) return function(call);
  const size_t bytes = static_cast<size_t>(call.count) * DTypeBytes(dtype);
  if (call.output != call.inputs[0]) Copy(call.output, call.inputs[0], bytes, call.stream_output);
  if (call.second != nullptr) Copy(call.second, call.inputs[0], bytes, call.stream_second);
}

#if defined(__x86_64__)
// MXCSR with all exceptions masked, round to nearest, no flush to zero, and denormals kept. The low 6 bits are sticky
// flags.
constexpr uint64_t kDefaultMode = 0x1f80;
constexpr uint64_t kStickyFlags = 0x3f;

FloatMode::FloatMode() : saved_(_mm_getcsr()), changed_((saved_ & ~kStickyFlags) != kDefaultMode) {
  if (changed_) _mm_setcsr(static_cast<unsigned>(kDefaultMode));
}
FloatMode::~FloatMode() {
  if (changed_) _mm_setcsr(static_cast<unsigned>(saved_));
}
#else
FloatMode::FloatMode() : saved_(0), changed_(false) {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  changed_ = saved_ != 0;
  if (changed_) asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
}
FloatMode::~FloatMode() {
  if (changed_) asm volatile("msr fpcr, %0" : : "r"(saved_));
}
#endif

}  // namespace horocache::data
