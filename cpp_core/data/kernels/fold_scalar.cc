// The reference kernels: every other kernel set must give the same bits.
#include <cstddef>
#include <cstdint>

#include "data/kernels/fold.h"

#define HC_VECTOR_BYTES 0
#include "data/kernels/fold_body.h"

namespace horocache::data {

constexpr KernelTable kTable = MakeTable();
const KernelTable kScalarTable = kTable;

void FoldComplex64Product(const FoldCall& call) { FoldElements<Complex<float>, Product>(call); }
void FoldComplex128Product(const FoldCall& call) { FoldElements<Complex<double>, Product>(call); }

}  // namespace horocache::data
