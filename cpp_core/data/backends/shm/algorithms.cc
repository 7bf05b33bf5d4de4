#include "data/backends/shm/algorithms.h"

#include <unistd.h>

namespace horocache::data {
namespace {

// For up to `most_ranks` ranks: the largest size for which one-shot is the fastest.
struct Row {
  int most_ranks;
  int64_t oneshot_max_bytes;
};
constexpr Row kOwnCores[] = {{2, 16 << 10}, {8, 8 << 10}, {1 << 30, 4 << 10}};
// With more ranks than cores a waiting rank yields its core, and an exchange lasts until every rank has run once.
constexpr Row kSharedCores[] = {{1 << 30, 256 << 10}};

int64_t Find(const Row* rows, int ranks) {
  while (ranks > rows->most_ranks) ++rows;
  return rows->oneshot_max_bytes;
}

}  // namespace

std::vector<std::string> ShmAlgorithmNames() { return {"auto", "oneshot", "twoshot", "direct"}; }

int64_t OneshotMaxBytes(int ranks) {
  const bool shared = ranks > sysconf(_SC_NPROCESSORS_ONLN);  // the host's processors, so equal on all of its ranks
  return Find(shared ? kSharedCores : kOwnCores, ranks);
}

}  // namespace horocache::data
