// Rules for the operations that work on rows: how many rows a rank has, how they are split among the ranks, and where
// they lie in the result. All backends share them; docs/explanation/operations.md describes them for users.
//
// Every error names the rank whose arguments are wrong. Wrong arguments on one rank must fail the operation on all
// ranks, so a backend informs the other ranks before it ends the operation.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "data/backend.h"

namespace horocache::data {

// A range of elements of a tensor or a result.
struct RowPart {
  int64_t first = 0;
  int64_t count = 0;
};

// The layout of a rank's result: where the received parts lie.
struct ReceivePlan {
  std::vector<RowPart> parts;  // by source
  int64_t elements = 0;        // of the result
  bool gaps = false;           // true if some elements are covered by no part; they must be zero-filled
};

// Splits `rows` among the ranks as evenly as possible: the first ranks get one more.
std::vector<int64_t> EvenSplits(int64_t rows, int ranks);

// The parts of a tensor that holds `rows` for each rank, one after the other; and the elements of the longest part.
std::vector<RowPart> PartsOf(const std::vector<int64_t>& rows, int64_t row_elements);
int64_t LongestOf(const std::vector<RowPart>& parts);

// kMismatch, naming both numbers, if the ranks `a` and `b` give a rank different numbers of rows.
Status CompareRows(const Collective& collective, int a, const std::vector<int64_t>& rows_of_a, int b,
                   const std::vector<int64_t>& rows_of_b);

bool HasJoined(const Collective& collective, int rank);

// Number of rows of the collective's one segment. kInvalidArgument, naming `rank`, if its count is not a multiple of a
// row.
StatusOr<int64_t> RowsOf(const Collective& collective, int rank);

// Rows for each rank: the splits that the caller gave, or even ones. kInvalidArgument if they do not fit the tensor or
// the number of ranks: without send_starts they must add up to the tensor's rows, with send_starts each part must lie
// within the tensor.
StatusOr<std::vector<int64_t>> SplitsOf(const Collective& collective, int rank, int ranks);

// The parts of `rank`'s input, by destination; empty for ranks that have joined. In allgather and gather the part is
// the whole input.
StatusOr<std::vector<RowPart>> SendParts(const Collective& collective, int rank, int ranks);

// Checks receive_rows and receive_starts as far as they do not depend on the rows that the other ranks send.
// kInvalidArgument if a list has a wrong length, a number is negative, or the operation takes no such list. Ok if
// `rank` receives nothing.
Status CheckReceive(const Collective& collective, int rank, int ranks);

// The layout of `rank`'s result, given the rows that each rank sends to it. Checks receive_rows (kMismatch, naming both
// numbers; unchecked for a rank that has joined, which sends none) and receive_starts (kInvalidArgument if parts
// overlap). All parts are empty if `rank` receives nothing.
StatusOr<ReceivePlan> PlanReceive(const Collective& collective, const std::vector<int64_t>& rows, int rank, int ranks);

// The ranges of elements that no part covers, in ascending order.
std::vector<RowPart> GapsOf(const ReceivePlan& plan);

// Rows of a result: the end of its last part. `starts` and `expected` are a collective's receive_starts and
// receive_rows; `rows` holds the rows that each rank sends.
int64_t ResultRows(const std::vector<int64_t>& starts, const std::vector<int64_t>& expected,
                   const std::vector<int64_t>& rows);

}  // namespace horocache::data
