// The arithmetic of the data plane: folds (reduces) n inputs into one result, in the order of the inputs.
//
// Note [Same bits from every kernel]
// A result depends only on the inputs, their order and the scaling. Every kernel set (scalar, AVX2, AVX-512) gives the
// same bytes:
// * float16 and bfloat16 are widened to float32, folded, scaled and rounded once, to nearest even; every other type is
//   folded in its own type. Integers wrap. The compiler forms no fused multiply-add (-ffp-contract=off).
// * Each input is multiplied by `before`; the result is multiplied by `after` and then divided by `divisor`. Floating
//   point scales in the accumulator's type. Integers scale in double, truncate towards zero and saturate; the division
//   truncates, too.
// * min and max: a NaN in any input makes the result NaN; among equal values (0.0 and -0.0) the first input wins.
// * A floating-point result that is NaN is the quiet NaN without sign and payload. Otherwise the compiler's order of
//   operands would decide which of two NaNs an addition keeps.
// * One input without scaling is copied bit for bit.
//
// Thread-safe: no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/status.h"
#include "wire/message.h"

namespace horocache::data {

struct Scaling {
  double before = 1.0;
  double after = 1.0;
  int64_t divisor = 1;
  bool none() const { return before == 1.0 && after == 1.0 && divisor == 1; }
};

struct FoldCall {
  const std::byte* const* inputs = nullptr;
  int num_inputs = 0;  // at least 1
  int64_t count = 0;
  std::byte* output = nullptr;  // may be one of the inputs; must not overlap them otherwise
  std::byte* second = nullptr;  // a second output for the same result; may be null
  Scaling scaling;
  // Hints to write around the caches: see Note [Writing around the caches] in copy.h.
  bool stream_output = false;
  bool stream_second = false;
};

using FoldFunction = void (*)(const FoldCall&);

// One function per element type and operation; null where the operation is not defined.
struct KernelTable {
  FoldFunction functions[kNumDTypes][wire::kNumReduceOps] = {};
};

// The kernels of one instruction set. Constant, and never destroyed.
class KernelSet {
 public:
  constexpr KernelSet(std::string_view name, const KernelTable* table) : name_(name), table_(table) {}
  std::string_view name() const { return name_; }
  FoldFunction Find(DType dtype, wire::ReduceOp op) const {
    return table_->functions[static_cast<size_t>(dtype)][static_cast<size_t>(op)];
  }

 private:
  std::string_view name_;
  const KernelTable* table_;
};

// `name`: "auto", or the name of a kernel set. kUnsupported if this processor or build lacks the set, kInvalidArgument
// if the name is unknown.
StatusOr<const KernelSet*> FindKernels(std::string_view name);
// The name of the kernel set that "auto" chooses.
std::string_view BestKernels();

// kUnsupported if the fold is not defined for the type; the message has the reason and an alternative.
Status CheckFold(DType dtype, wire::ReduceOp op, const Scaling& scaling);

// Combines the user's factors with those of `op` on `ranks` ranks. The average of floats is one multiplication if that
// is exact (`ranks` is a power of two) or if there is a postscale anyway, else a division.
Scaling MakeScaling(DType dtype, wire::ReduceOp op, double prescale, double postscale, int ranks);

// Runs the call. Handles zero elements and plain copies without the kernel.
void Fold(FoldFunction function, DType dtype, const FoldCall& call);

// Sets the thread's floating-point mode to round to nearest with denormals, and restores the old mode at the end of the
// scope. A user's thread may flush denormals, and such a thread runs folds while it drives the rank.
class FloatMode {
 public:
  FloatMode();
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  uint64_t saved_;
  bool changed_;
};

// Complex products, shared by all tables. GCC 12 compiles a complex product to vfmaddsub in spite of -ffp-contract=off
// if the target has that instruction, so only the file of the scalar kernels compiles them.
void FoldComplex64Product(const FoldCall& call);
void FoldComplex128Product(const FoldCall& call);

// The tables of this build, defined in fold_<name>.cc.
extern const KernelTable kScalarTable;
#if defined(__x86_64__)
extern const KernelTable kAvx2Table;
extern const KernelTable kAvx512Table;
#endif

}  // namespace horocache::data
