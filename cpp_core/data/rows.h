// Rows of the operations that work on rows: how many a rank has, how they are split among the ranks, and where they end
// up in the result. One set of rules for all backends; see docs/explanation/operations.md for what users see of them.
//
// Every error names the rank whose arguments are wrong. What one rank alone can get wrong must fail on all ranks, so a
// backend lets the others know before it ends the operation.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "data/backend.h"

namespace horocache::data {

// Elements of a tensor or a result.
struct RowPart {
  int64_t first = 0;
  int64_t count = 0;
};

// Where the parts that a rank receives lie in its result.
struct ReceivePlan {
  std::vector<RowPart> parts;  // by source
  int64_t elements = 0;        // of the result
  bool gaps = false;           // there are elements that no part covers; they are to be zero
};

// As even as possible: the first ranks get one more.
std::vector<int64_t> EvenSplits(int64_t rows, int ranks);

// The parts of a tensor that has these rows for each rank, one after the other, and the elements of the longest.
std::vector<RowPart> PartsOf(const std::vector<int64_t>& rows, int64_t row_elements);
int64_t LongestOf(const std::vector<RowPart>& parts);

// kMismatch, naming both numbers, if the ranks `a` and `b` give some rank a different number of rows.
Status CompareRows(const Collective& collective, int a, const std::vector<int64_t>& rows_of_a, int b,
                   const std::vector<int64_t>& rows_of_b);

bool HasJoined(const Collective& collective, int rank);

// Rows of the collective's one segment. kInvalidArgument, naming `rank`, if its count is not a multiple of a row.
StatusOr<int64_t> RowsOf(const Collective& collective, int rank);

// Rows for each rank: the splits given, or even ones. kInvalidArgument if they do not fit the tensor or the number of
// ranks: without send_starts they add up to its rows, with them each lies within it.
StatusOr<std::vector<int64_t>> SplitsOf(const Collective& collective, int rank, int ranks);

// Of `rank`'s input, by destination; nothing for ranks that have joined. allgather and gather send the whole of it.
StatusOr<std::vector<RowPart>> SendParts(const Collective& collective, int rank, int ranks);

// kInvalidArgument for receive_rows and receive_starts that are wrong whatever comes: their number, numbers below 0, an
// operation that has none. Ok where `rank` receives nothing.
Status CheckReceive(const Collective& collective, int rank, int ranks);

// Of `rank`'s result, given the rows that each rank sends to it. Checks receive_rows (kMismatch, naming both numbers; a
// rank that has joined sends none, whatever is expected) and receive_starts (kInvalidArgument if parts overlap). Empty
// where `rank` receives nothing.
StatusOr<ReceivePlan> PlanReceive(const Collective& collective, const std::vector<int64_t>& rows, int rank, int ranks);

// What the parts leave uncovered, in ascending order.
std::vector<RowPart> GapsOf(const ReceivePlan& plan);

// Rows of a result: the end of its last part. The lists are a collective's receive_starts and receive_rows.
int64_t ResultRows(const std::vector<int64_t>& starts, const std::vector<int64_t>& expected,
                   const std::vector<int64_t>& rows);

}  // namespace horocache::data
