#include "data/row_layout.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace horocache::data {
namespace {

// The most bytes that a tensor or a result may have: sums of a few such numbers do not overflow.
constexpr int64_t kMostBytes = int64_t{1} << 60;

Status Wrong(const Collective& collective, int rank, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, collective.Rank(rank) + " submitted wrong arguments: " + what + ".");
}

std::string RowsText(int64_t rows) { return std::to_string(rows) + (rows == 1 ? " row" : " rows"); }

// Requires one number for each rank, none negative. `what` names the list in the error.
Status CheckList(const Collective& collective, const std::vector<int64_t>& list, const char* what, int rank,
                 int ranks) {
  if (static_cast<int>(list.size()) != ranks) {
    return Wrong(collective, rank,
                 "the list of the " + std::string(what) + " has " + std::to_string(list.size()) + " numbers for " +
                     std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") + "; give one for each rank");
  }
  for (int r = 0; r < ranks; ++r) {
    if (list[r] >= 0) continue;
    return Wrong(collective, rank,
                 "the list of the " + std::string(what) + " has " + std::to_string(list[r]) + " for " +
                     collective.Rank(r) + "; it must not be negative");
  }
  return Status::Ok();
}

bool SplitsAmongRanks(wire::Op op) {
  return op == wire::Op::kAlltoall || op == wire::Op::kScatter || op == wire::Op::kReducescatter;
}

bool Receives(const Collective& collective, int rank) {
  return !HasJoined(collective, rank) && (collective.op != wire::Op::kGather || collective.root == rank);
}

Status CheckSends(const Collective& collective, const std::vector<int64_t>& splits, int64_t rows, int rank, int ranks) {
  HC_RETURN_IF_ERROR(CheckList(collective, collective.send_starts, "displacements", rank, ranks));
  for (int r = 0; r < ranks; ++r) {
    const int64_t start = collective.send_starts[r];
    if (start <= rows && splits[r] <= rows - start) continue;
    return Wrong(collective, rank,
                 RowsText(splits[r]) + " for " + collective.Rank(r) + ", from row " + std::to_string(start) +
                     " on, are not within the tensor, which has " + RowsText(rows));
  }
  return Status::Ok();
}

// kInvalidArgument if two received parts overlap in the result. `planned`: rows of each part.
Status CheckOverlaps(const Collective& collective, const std::vector<int64_t>& planned, int rank, int ranks) {
  const std::vector<int64_t>& starts = collective.receive_starts;
  std::vector<int> order(ranks);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return std::pair(starts[a], a) < std::pair(starts[b], b); });
  int last = -1;
  for (const int r : order) {
    if (planned[r] == 0) continue;
    if (last >= 0 && starts[r] - starts[last] < planned[last]) {
      return Wrong(collective, rank,
                   RowsText(planned[r]) + " from " + collective.Rank(r) + ", from row " + std::to_string(starts[r]) +
                       " of the result on, overlap " + RowsText(planned[last]) + " from " + collective.Rank(last) +
                       ", from row " + std::to_string(starts[last]) +
                       " on; received parts may leave gaps, but not overlap");
    }
    last = r;
  }
  return Status::Ok();
}

// kMismatch if a rank sends another number of rows than `rank` expects.
Status CheckExpected(const Collective& collective, const std::vector<int64_t>& rows, int rank) {
  const std::vector<int64_t>& expected = collective.receive_rows;
  for (size_t q = 0; q < expected.size(); ++q) {
    if (expected[q] == rows[q] || HasJoined(collective, static_cast<int>(q))) continue;
    return Status(StatusCode::kMismatch, collective.Rank(rank) + " expects " + RowsText(expected[q]) + " from " +
                                             collective.Rank(q) + ", which sends " + std::to_string(rows[q]) +
                                             ". Both ranks must give the same number.");
  }
  return Status::Ok();
}

}  // namespace

std::vector<int64_t> EvenSplits(int64_t rows, int ranks) {
  std::vector<int64_t> splits(ranks, rows / ranks);
  for (int64_t r = 0; r < rows % ranks; ++r) ++splits[r];
  return splits;
}

std::vector<RowPart> PartsOf(const std::vector<int64_t>& rows, int64_t row_elements) {
  std::vector<RowPart> parts;
  int64_t first = 0;
  for (const int64_t r : rows) {
    parts.push_back({first, r * row_elements});
    first += parts.back().count;
  }
  return parts;
}

int64_t LongestOf(const std::vector<RowPart>& parts) {
  int64_t longest = 0;
  for (const RowPart& part : parts) longest = std::max(longest, part.count);
  return longest;
}

Status CompareRows(const Collective& collective, int a, const std::vector<int64_t>& rows_of_a, int b,
                   const std::vector<int64_t>& rows_of_b) {
  const auto found = std::ranges::mismatch(rows_of_a, rows_of_b);
  if (found.in1 == rows_of_a.end()) return Status::Ok();
  return {StatusCode::kMismatch,
          collective.Rank(a) + " gives " + collective.Rank(static_cast<int>(found.in1 - rows_of_a.begin())) + " " +
              RowsText(*found.in1) + ", " + collective.Rank(b) + " gives it " + std::to_string(*found.in2) +
              ". Give the same number of rows for each rank on all ranks."};
}

bool HasJoined(const Collective& collective, int rank) {
  return std::find(collective.joined.begin(), collective.joined.end(), rank) != collective.joined.end();
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
  std::vector<int64_t> splits = collective.splits;
  if (splits.empty()) {
    if (collective.op != wire::Op::kReducescatter && *rows % ranks != 0) {
      return Wrong(collective, rank,
                   RowsText(*rows) + " cannot be shared out evenly among " + std::to_string(ranks) +
                       " ranks; give the number of rows for each rank");
    }
    splits = EvenSplits(*rows, ranks);
  }
  HC_RETURN_IF_ERROR(CheckList(collective, splits, "rows for each rank", rank, ranks));
  if (!collective.send_starts.empty()) {
    if (collective.op == wire::Op::kReducescatter) return Wrong(collective, rank, "takes no displacements");
    HC_RETURN_IF_ERROR(CheckSends(collective, splits, *rows, rank, ranks));
    return splits;
  }
  int64_t sum = 0;
  for (const int64_t split : splits) {
    if (__builtin_add_overflow(sum, split, &sum))
      return Wrong(collective, rank, "its rows for each rank add up to over 2^63");
  }
  if (sum != *rows) {
    return Wrong(collective, rank,
                 "its rows for each rank add up to " + RowsText(sum) + ", but the tensor has " + std::to_string(*rows));
  }
  return splits;
}

StatusOr<std::vector<RowPart>> SendParts(const Collective& collective, int rank, int ranks) {
  std::vector<RowPart> parts(ranks);
  const bool has_data = collective.op != wire::Op::kScatter || collective.root == rank;
  if (!has_data || HasJoined(collective, rank)) return parts;
  if (!SplitsAmongRanks(collective.op)) {
    StatusOr<int64_t> rows = RowsOf(collective, rank);
    if (!rows.ok()) return rows.status();
    for (int d = 0; d < ranks; ++d) {
      const bool wants = collective.op != wire::Op::kGather || collective.root == d;
      if (wants && !HasJoined(collective, d)) parts[d].count = *rows * collective.row_elements;
    }
    return parts;
  }
  StatusOr<std::vector<int64_t>> splits = SplitsOf(collective, rank, ranks);
  if (!splits.ok()) return splits.status();
  int64_t next = 0;
  for (int d = 0; d < ranks; ++d) {
    const int64_t first = collective.send_starts.empty() ? next : collective.send_starts[d];
    next += (*splits)[d];
    parts[d].first = first * collective.row_elements;
    if (!HasJoined(collective, d)) parts[d].count = (*splits)[d] * collective.row_elements;
  }
  return parts;
}

Status CheckReceive(const Collective& collective, int rank, int ranks) {
  if (!Receives(collective, rank)) return Status::Ok();
  if (collective.receive_rows.empty() && collective.receive_starts.empty()) return Status::Ok();
  const wire::Op op = collective.op;
  if (op != wire::Op::kAllgather && op != wire::Op::kAlltoall && op != wire::Op::kGather) {
    return Wrong(collective, rank, "takes no expected rows or places in the result");
  }
  if (!collective.receive_rows.empty()) {
    HC_RETURN_IF_ERROR(CheckList(collective, collective.receive_rows, "rows expected", rank, ranks));
  }
  if (collective.receive_starts.empty()) return Status::Ok();
  return CheckList(collective, collective.receive_starts, "displacements", rank, ranks);
}

StatusOr<ReceivePlan> PlanReceive(const Collective& collective, const std::vector<int64_t>& rows, int rank, int ranks) {
  ReceivePlan plan;
  plan.parts.resize(ranks);
  if (!Receives(collective, rank)) return plan;
  HC_RETURN_IF_ERROR(CheckReceive(collective, rank, ranks));
  HC_RETURN_IF_ERROR(CheckExpected(collective, rows, rank));
  const std::vector<int64_t>& starts = collective.receive_starts;
  const std::vector<int64_t>& planned = collective.receive_rows.empty() ? rows : collective.receive_rows;
  const int64_t most = kMostBytes / std::max({int64_t{1}, collective.row_elements, collective.elements_elsewhere}) /
                       static_cast<int64_t>(DTypeBytes(collective.dtype)) / ranks;
  for (int q = 0; q < ranks; ++q) {
    if (planned[q] <= most && (starts.empty() || starts[q] <= most)) continue;
    return Wrong(collective, rank,
                 RowsText(planned[q]) + " from " + collective.Rank(q) +
                     (starts.empty() ? "" : ", from row " + std::to_string(starts[q]) + " of the result on,") +
                     " are more than there can be");
  }
  if (!starts.empty()) HC_RETURN_IF_ERROR(CheckOverlaps(collective, planned, rank, ranks));
  int64_t covered = 0;
  for (int q = 0; q < ranks; ++q) {
    plan.parts[q].first = starts.empty() ? covered : starts[q] * collective.row_elements;
    plan.parts[q].count = rows[q] * collective.row_elements;
    covered += plan.parts[q].count;
  }
  plan.elements = ResultRows(starts, collective.receive_rows, rows) * collective.row_elements;
  plan.gaps = covered < plan.elements;
  return plan;
}

std::vector<RowPart> GapsOf(const ReceivePlan& plan) {
  std::vector<RowPart> gaps;
  if (!plan.gaps) return gaps;
  std::vector<RowPart> parts;
  for (const RowPart& part : plan.parts) {
    if (part.count > 0) parts.push_back(part);
  }
  std::sort(parts.begin(), parts.end(), [](const RowPart& a, const RowPart& b) { return a.first < b.first; });
  parts.push_back({plan.elements, 0});
  int64_t end = 0;
  for (const RowPart& part : parts) {
    if (part.first > end) gaps.push_back({end, part.first - end});
    end = part.first + part.count;
  }
  return gaps;
}

int64_t ResultRows(const std::vector<int64_t>& starts, const std::vector<int64_t>& expected,
                   const std::vector<int64_t>& rows) {
  if (starts.empty()) return std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const std::vector<int64_t>& planned = expected.empty() ? rows : expected;
  int64_t end = 0;
  for (size_t q = 0; q < starts.size(); ++q) end = std::max(end, starts[q] + planned[q]);
  return end;
}

}  // namespace horocache::data
