// The kernels for AVX2; called only where the processor has them.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "data/kernels/fold.h"

// The target applies only from here on, so that no inline function of the headers above is compiled with these
// instructions. It leaves out fma, because a result must not depend on the kernel set.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif

#define HC_VECTOR_BYTES 32
#include "data/kernels/fold_body.h"

namespace horocache::data {

constexpr KernelTable kTable = MakeTable();
const KernelTable kAvx2Table = kTable;

}  // namespace horocache::data

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
