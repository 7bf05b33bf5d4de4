#include "data/rows.h"

#include <string>
#include <utility>

namespace horocache::data {
namespace {

Status Wrong(const Collective& collective, int rank, const std::string& what) {
  return Status(StatusCode::kInvalidArgument,
                std::string(wire::OpName(collective.op)) + " on rank " + std::to_string(rank) + ": " + what);
}

}  // namespace

std::vector<int64_t> EvenSplits(int64_t rows, int ranks) {
  std::vector<int64_t> splits(ranks, rows / ranks);
  for (int64_t r = 0; r < rows % ranks; ++r) ++splits[r];
  return splits;
}

StatusOr<int64_t> RowsOf(const Collective& collective, int rank) {
  const int64_t count = collective.segments.empty() ? 0 : collective.segments[0].count;
  if (collective.segments.size() > 1) {
    return Wrong(collective, rank, "takes one segment, not " + std::to_string(collective.segments.size()));
  }
  if (collective.row_elements < 0 || count < 0) return Wrong(collective, rank, "negative sizes");
  if (collective.row_elements == 0) {
    if (count != 0) return Wrong(collective, rank, std::to_string(count) + " elements in rows of none");
    return collective.rows < 0 ? int64_t{0} : collective.rows;
  }
  const int64_t rows = count / collective.row_elements;
  if (rows * collective.row_elements != count || (collective.rows >= 0 && collective.rows != rows)) {
    return Wrong(collective, rank,
                 std::to_string(count) + " elements are not " +
                     (collective.rows >= 0 ? std::to_string(collective.rows) : "a whole number of") + " rows of " +
                     std::to_string(collective.row_elements));
  }
  return rows;
}

StatusOr<std::vector<int64_t>> SplitsOf(const Collective& collective, int rank, int ranks) {
  StatusOr<int64_t> rows = RowsOf(collective, rank);
  if (!rows.ok()) return rows.status();
  if (collective.splits.empty()) return EvenSplits(*rows, ranks);
  if (static_cast<int>(collective.splits.size()) != ranks) {
    return Wrong(collective, rank,
                 std::to_string(collective.splits.size()) + " splits for " + std::to_string(ranks) + " ranks");
  }
  int64_t sum = 0;
  for (const int64_t split : collective.splits) {
    if (split < 0) return Wrong(collective, rank, "a split of " + std::to_string(split) + " rows");
    if (__builtin_add_overflow(sum, split, &sum))
      return Wrong(collective, rank, "splits that add up to over 2^63 rows");
  }
  if (sum != *rows) {
    return Wrong(collective, rank,
                 "splits add up to " + std::to_string(sum) + " rows, but the tensor has " + std::to_string(*rows));
  }
  return collective.splits;
}

}  // namespace horocache::data
