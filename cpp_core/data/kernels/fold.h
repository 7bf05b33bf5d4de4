// The arithmetic of the data plane: folds n inputs into one result, in the order of the inputs.
//
// Note [Same bits from every kernel]
// A result depends on the inputs, their order and the scaling alone. Every kernel set (scalar, AVX2, AVX-512) gives the
// same bytes:
// * float16 and bfloat16 are widened to float32, folded, scaled and rounded once, to nearest even; every other type is
//   folded in itself. Integers wrap. Nothing is contracted to a fused multiply-add (-ffp-contract=off).
// * Each input is multiplied by `before`, the result by `after` and then divided by `divisor`. Floating point does that
//   in the accumulator's type. Integers scale in double, truncate towards zero and saturate; the division truncates,
//   too.
// * min and max: a NaN in any input makes the result NaN; among equal values (0.0 and -0.0) the first input wins.
// * A floating-point result that is NaN is the quiet NaN without sign and payload. Which of two NaNs an addition keeps
//   is otherwise a matter of the compiler's operand order.
// * One input and no scaling is a copy, bit for bit.
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
  std::byte* second = nullptr;  // null, or gets the result as well
  Scaling scaling;
  // Hints: write around the caches, see Note [Writing around the caches] in copy.h.
  bool stream_output = false;
  bool stream_second = false;
};

using FoldFunction = void (*)(const FoldCall&);

// One function per element type and operation; null where the operation is not defined.
struct KernelTable {
  FoldFunction functions[kNumDTypes][wire::kNumReduceOps] = {};
};

// The kernels of one instruction set. Constant; lives for ever.
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

// "auto" or a name; kUnsupported if this processor or build does not have them, kInvalidArgument if nothing has.
StatusOr<const KernelSet*> FindKernels(std::string_view name);
// The name of what "auto" chooses.
std::string_view BestKernels();

// kUnsupported with the reason and what would do, if the fold is not defined for the type.
Status CheckFold(DType dtype, wire::ReduceOp op, const Scaling& scaling);

// What `op` on `ranks` ranks does to the factors given by the user. The average of floats is one multiplication where
// that is exact (a power of two) or where there is a factor anyway, else a division.
Scaling MakeScaling(DType dtype, wire::ReduceOp op, double prescale, double postscale, int ranks);

// Runs the call; zero elements and plain copies do not reach the kernel.
void Fold(FoldFunction function, DType dtype, const FoldCall& call);

// Sets the thread's floating-point mode to round to nearest with denormals, and back at the end of the scope: a user's
// thread may flush denormals, and may drive a fold.
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

// Shared by all tables. GCC 12 turns a complex product into vfmaddsub in spite of -ffp-contract=off once a processor
// with it is chosen, so only the scalar kernels' file compiles it.
void FoldComplex64Product(const FoldCall& call);
void FoldComplex128Product(const FoldCall& call);

// The tables of this build. Defined in fold_<name>.cc.
extern const KernelTable kScalarTable;
#if defined(__x86_64__)
extern const KernelTable kAvx2Table;
extern const KernelTable kAvx512Table;
#endif

}  // namespace horocache::data
