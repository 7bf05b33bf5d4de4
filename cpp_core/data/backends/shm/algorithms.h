// The choice of the algorithm for an allreduce or reduce in shared memory.
//
// Note [Choice of the shm algorithm]
// * One-shot: every rank folds the whole tensor by itself. It takes one exchange, but each rank reads the bytes of all
//   ranks. It is the fastest algorithm for small sizes.
// * Two-shot: every rank folds one slice. Each byte is folded once, but a second exchange distributes the results.
// * Direct: all tensors lie in regions, and each rank folds its slice in place. It takes two exchanges, which carry no
//   tensor data, and copies nothing. Above the sizes for one-shot it is never slower than two-shot. If a rank's tensors
//   are not in its region, all ranks use two-shot instead.
// So the table needs only the largest size for one-shot, by number of ranks. benchmarks/micro/shm_allreduce.cc measures
// it (docs/performance.md has the results). The choice depends on the program, the host and the job's agreed knobs, so
// it is equal on all ranks; the ranks also compare it in the first tile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace horocache::data {

// Values of wire::Choice::algorithm.
inline constexpr uint8_t kAuto = 0;
inline constexpr uint8_t kOneshot = 1;
inline constexpr uint8_t kTwoshot = 2;
inline constexpr uint8_t kDirect = 3;  // two-shot if a rank's tensors are not in its region

// The names of the algorithms, by value.
std::vector<std::string> ShmAlgorithmNames();

// The largest size in bytes for which kAuto chooses one-shot; above it, kAuto chooses direct.
int64_t OneshotMaxBytes(int ranks);

}  // namespace horocache::data
