// Which algorithm an allreduce or reduce in shared memory takes.
//
// Note [The table of algorithms]
// What is small ends soonest if every rank folds all of it by itself (one-shot): one exchange, but each rank reads all
// ranks' bytes. In slices (two-shot) each byte is folded once, for a second exchange. Where all tensors are in regions
// (direct), nothing is copied, for two exchanges that carry addresses alone; above the size at which one-shot ends it
// is never slower than two-shot, and where it cannot be, two-shot is what is left. So the table has one size for a
// number of ranks, as benchmarks/micro/shm_allreduce.cc measures it (docs/performance.md has the figures). It follows
// from the program, the host and the job's agreed knobs, so it is equal on all ranks; what it gives is compared in the
// first tile, too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace horocache::data {

// Of wire::Choice::algorithm.
inline constexpr uint8_t kAuto = 0;
inline constexpr uint8_t kOneshot = 1;
inline constexpr uint8_t kTwoshot = 2;
inline constexpr uint8_t kDirect = 3;  // two-shot where some rank's tensors are not in its region

// The names of these.
std::vector<std::string> ShmAlgorithmNames();

// Up to which size kAuto is one-shot; above, it is direct.
int64_t OneshotMaxBytes(int ranks);

}  // namespace horocache::data
