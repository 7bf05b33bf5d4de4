// The data types and reductions of NCCL, in real arithmetic: each step of a sum is rounded to the type, as it is when
// the ranks of a ring add one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fake_gpu {

inline constexpr int kDataTypes = 12;  // ncclDataType_t: i8 u8 i32 u32 i64 u64 f16 f32 f64 bf16 f8e4m3 f8e5m2
enum : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4, kPreMulSum = 5 };  // kPreMulSum: any created one

// Bytes of an element; 0 for an unknown type.
size_t TypeSize(int type);

// Reduces `inputs` in their order into `output`. `factor`: an element of the type that kPreMulSum multiplies each input
// with; unused otherwise.
void Reduce(int type, int operation, const std::byte* factor, const std::vector<const std::byte*>& inputs,
            std::byte* output, size_t count);

}  // namespace fake_gpu
