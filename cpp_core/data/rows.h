// Rows of the operations that work on rows: how many a rank has, and how they are split among the ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "data/backend.h"

namespace horocache::data {

// As even as possible: the first ranks get one more.
std::vector<int64_t> EvenSplits(int64_t rows, int ranks);

// Rows of the collective's one segment. kInvalidArgument, naming `rank`, if its count is not a multiple of a row.
StatusOr<int64_t> RowsOf(const Collective& collective, int rank);

// The splits given, or even ones; kInvalidArgument if they do not fit the tensor or the number of ranks.
StatusOr<std::vector<int64_t>> SplitsOf(const Collective& collective, int rank, int ranks);

}  // namespace horocache::data
