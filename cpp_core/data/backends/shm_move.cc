// allgather, broadcast, alltoall, gather, scatter and barrier: operations that only move elements.
//
// A sender packs what everybody gets (allgather, broadcast, gather), or one part for each other rank (alltoall,
// scatter), tile by tile; receivers copy it from the slots to where it belongs. Where the numbers of rows differ, they
// travel in the first tile together with the first elements, so that a small operation needs one exchange only. What a
// rank has for itself goes straight from its input to its output.

#include <algorithm>
#include <memory>
#include <utility>

#include "data/backends/segment_cursor.h"
#include "data/backends/shm_operation.h"
#include "data/rows.h"

namespace horocache::data {
namespace {

// Elements of the input, or of the output, that travel between this rank and another.
struct Part {
  int64_t first = 0;
  int64_t count = 0;
};

class ShmMove : public ShmOperation {
 public:
  ShmMove(ShmQueue* queue, Collective collective);

 private:
  bool Step(int64_t* budget) override;
  bool Complete() const override {
    return met_ && pack_.tile == tiles_ && unpack_.tile == tiles_ && local_done_ == local_.count;
  }

  void PlanSends();
  bool Meet();
  Status ReadExchange();
  // `most_bytes`: more than any rank's result has.
  void PlanReceives(const std::vector<int64_t>& rows, int64_t most_bytes);

  bool Pack(int64_t* budget);
  void PackPart(size_t index, int64_t end, int64_t* budget);
  bool Unpack(int64_t* budget);
  bool UnpackFrom(int source, int64_t* budget);
  bool CopyLocal(int64_t* budget);

  // What a tile holds of a part: elements [begin, end) of it.
  int64_t Begin(uint64_t tile) const { return static_cast<int64_t>(tile) * capacity_; }
  int64_t End(const Part& part, uint64_t tile) const { return std::min(part.count, Begin(tile) + capacity_); }
  // Place number `index` of `source`'s slot.
  std::byte* Place(int source, uint64_t tile, size_t index) {
    if (inline_) return port_.inline_payload(source, Number(tile));
    return port_.payload(source, Number(tile)) + static_cast<int64_t>(index) * capacity_ * element_bytes_;
  }
  bool has_root() const { return collective_.root >= 0; }
  bool is_root() const { return collective_.root == rank(); }

  bool split_ = false;      // one part for each other rank
  bool exchanges_ = false;  // numbers of rows differ between ranks
  bool inline_ = false;
  bool large_ = false;
  bool planned_ = false;
  bool met_ = false;
  int64_t capacity_ = 0;           // elements of a part in one tile
  std::vector<int64_t> row_list_;  // what this rank tells: its rows, or its rows for each rank
  std::vector<Part> sends_;        // by place in the slot
  std::vector<Part> receives_;     // by source; the part of this rank itself stays empty
  Part local_;                     // in the output
  int64_t local_input_ = 0;        // its first element in the input
  int64_t local_done_ = 0;
  std::vector<Segment> result_;  // the one output of an operation that allocates
  Stage pack_, unpack_;
  size_t pack_part_ = 0;
  int unpack_source_ = 0;
  SegmentCursor input_cursor_, output_cursor_, local_input_cursor_, local_output_cursor_;
};

ShmMove::ShmMove(ShmQueue* queue, Collective collective) : ShmOperation(queue, std::move(collective)) {
  const wire::Op op = collective_.op;
  split_ = op == wire::Op::kAlltoall || op == wire::Op::kScatter;
  exchanges_ = op != wire::Op::kBroadcast && op != wire::Op::kBarrier;
  const int64_t part_bytes = split_ ? port_.tile_bytes() / std::max(1, size() - 1) / 64 * 64 : port_.tile_bytes();
  capacity_ = part_bytes / element_bytes_;
  header_count_ = exchanges_ ? collective_.row_elements : 0;
  receives_.resize(size());
  const auto width = static_cast<size_t>(element_bytes_);
  input_cursor_ = local_input_cursor_ = SegmentCursor(&collective_.segments, width);
  if (op == wire::Op::kBroadcast) {
    int64_t total = 0;
    for (const Segment& segment : collective_.segments) total += segment.count;
    header_count_ = total;
    large_ = Large(total * element_bytes_);
    inline_ = total * element_bytes_ <= ShmPort::kInlineBytes;
    output_cursor_ = local_output_cursor_ = SegmentCursor(&collective_.segments, width);
    tiles_ = static_cast<uint64_t>(std::max<int64_t>(1, (total + capacity_ - 1) / capacity_));
    if (is_root()) {
      sends_.push_back({0, total});
      local_.count = total;
    } else if (!joined(rank())) {
      receives_[collective_.root].count = total;
    }
  } else if (exchanges_) {
    PlanSends();
  }
}

void ShmMove::PlanSends() {
  row_list_.assign(split_ ? size() : 1, 0);
  if (joined(rank()) || (collective_.op == wire::Op::kScatter && !is_root())) return;
  if (split_) {
    StatusOr<std::vector<int64_t>> splits = SplitsOf(collective_, rank(), size());
    if (!splits.ok()) return Refuse(splits.status());
    row_list_ = std::move(*splits);
    int64_t first = 0;
    for (int d = 0; d < size(); ++d) {
      const int64_t count = row_list_[d] * collective_.row_elements;
      if (d == rank()) {
        local_input_ = first;
      } else {
        sends_.push_back({first, count});
      }
      first += count;
    }
    return;
  }
  StatusOr<int64_t> rows = RowsOf(collective_, rank());
  if (!rows.ok()) return Refuse(rows.status());
  row_list_[0] = *rows;
  const bool keeps = has_root() && is_root();  // the root of a gather sends nothing
  if (!keeps) sends_.push_back({0, *rows * collective_.row_elements});
}

bool ShmMove::Step(int64_t* budget) {
  if (pack_.tile > 0 && !met_) return Meet();
  return Unpack(budget) || Pack(budget) || CopyLocal(budget);
}

// After the first tile of all ranks is there, everybody knows everything.
bool ShmMove::Meet() {
  if (!planned_) {
    if (!HeadersArrived()) return false;
    if (ended()) return true;
    planned_ = true;
    if (exchanges_) {
      if (Status read = ReadExchange(); !read.ok()) EndAfterFirstTile(std::move(read));
    }
    if (ended()) return true;
  }
  if (!AllAllocated()) return false;
  met_ = !ended();
  return true;
}

// Reads the numbers of rows of all ranks; every rank comes to the same number of tiles.
Status ShmMove::ReadExchange() {
  constexpr int64_t kMost = int64_t{1} << 60;
  const int64_t row_bytes = std::max<int64_t>(1, collective_.row_elements * element_bytes_);
  std::vector<int64_t> rows(size(), 0);  // that this rank gets
  int64_t longest = 0;
  int64_t total = 0;
  const bool receives = !joined(rank()) && (split_ || !has_root() || is_root());
  for (int q = 0; q < size(); ++q) {
    const int64_t* told = port_.exchange(q, Number(0));
    for (size_t d = 0; d < row_list_.size(); ++d) {
      if (told[d] < 0 || told[d] > kMost / row_bytes / size()) {
        return Status(StatusCode::kMismatch, std::string(wire::OpName(collective_.op)) + ": rank " + std::to_string(q) +
                                                 " sends " + std::to_string(told[d]) + " rows of " +
                                                 std::to_string(row_bytes) + " bytes");
      }
      const bool stays = split_ ? static_cast<int>(d) == q : collective_.root == q;
      if (!stays) longest = std::max(longest, told[d] * collective_.row_elements);
      total += told[d];
    }
    if (receives) rows[q] = told[split_ ? rank() : 0];
  }
  tiles_ = static_cast<uint64_t>(std::max<int64_t>(1, (longest + capacity_ - 1) / capacity_));
  PlanReceives(rows, total * row_bytes);
  return Status::Ok();
}

void ShmMove::PlanReceives(const std::vector<int64_t>& rows, int64_t most_bytes) {
  int64_t first = 0;
  for (int q = 0; q < size(); ++q) {
    const Part part{first, rows[q] * collective_.row_elements};
    (q == rank() ? local_ : receives_[q]) = part;
    first += part.count;
  }
  if (collective_.output != nullptr) collective_.output->rows = rows;
  std::byte* const base = AllocateResult(first * element_bytes_, most_bytes);
  result_.push_back({nullptr, base, first});
  if (base == nullptr) {
    receives_.assign(size(), Part());
    local_.count = 0;
  }
  large_ = Large(first * element_bytes_);
  const auto width = static_cast<size_t>(element_bytes_);
  output_cursor_ = local_output_cursor_ = SegmentCursor(&result_, width);
}

bool ShmMove::Pack(int64_t* budget) {
  if (pack_.tile == tiles_) return false;
  const uint64_t tile = pack_.tile;
  const auto sends_now = [&](const Part& part) { return part.count > Begin(tile); };
  if (tile > 0 && std::none_of(sends_.begin(), sends_.end(), sends_now)) {
    pack_.Next();
    return true;
  }
  if (!pack_.open) {
    if (!port_.SlotFree(Number(tile))) return Block(Wait::kConsumed, tile);
    pack_.open = true;
    pack_part_ = 0;
    pack_.at = Begin(tile);
    if (tile == 0) std::copy(row_list_.begin(), row_list_.end(), port_.exchange(rank(), Number(0)));
  }
  for (; pack_part_ < sends_.size(); ++pack_part_, pack_.at = Begin(tile)) {
    const int64_t end = End(sends_[pack_part_], tile);
    while (pack_.at < end && *budget > 0) PackPart(pack_part_, end, budget);
    if (pack_.at < end) return true;
  }
  if (tile == 0) {
    PublishFirst();
  } else {
    port_.PublishPacked(Number(tile));
  }
  pack_.Next();
  return true;
}

void ShmMove::PackPart(size_t index, int64_t end, int64_t* budget) {
  input_cursor_.Seek(sends_[index].first + pack_.at);
  const int64_t run = input_cursor_.Run(std::min(end - pack_.at, PieceElements(*budget)));
  std::byte* const to = Place(rank(), pack_.tile, index) + (pack_.at - Begin(pack_.tile)) * element_bytes_;
  Move(to, input_cursor_.input(), run * element_bytes_, true, budget);
  pack_.at += run;
}

bool ShmMove::Unpack(int64_t* budget) {
  if (!met_ || unpack_.tile == tiles_) return false;
  if (!unpack_.open) {
    unpack_.open = true;
    unpack_source_ = 0;
    unpack_.at = Begin(unpack_.tile);
  }
  bool moved = false;
  for (; unpack_source_ < size(); ++unpack_source_, unpack_.at = Begin(unpack_.tile)) {
    const int64_t end = End(receives_[unpack_source_], unpack_.tile);
    if (unpack_.at >= end) continue;
    if (!port_.Packed(unpack_source_, Number(unpack_.tile))) return Block(Wait::kPacked, unpack_.tile) || moved;
    moved = true;
    if (!UnpackFrom(unpack_source_, budget)) return true;
  }
  port_.PublishConsumed(Number(unpack_.tile));
  unpack_.Next();
  return true;
}

// False if the budget ran out.
bool ShmMove::UnpackFrom(int source, int64_t* budget) {
  const int64_t end = End(receives_[source], unpack_.tile);
  const size_t place = split_ ? static_cast<size_t>(rank() < source ? rank() : rank() - 1) : 0;
  const std::byte* const from = Place(source, unpack_.tile, place);
  while (unpack_.at < end) {
    if (*budget <= 0) return false;
    output_cursor_.Seek(receives_[source].first + unpack_.at);
    const int64_t run = output_cursor_.Run(std::min(end - unpack_.at, PieceElements(*budget)));
    if (std::byte* const to = output_cursor_.output(); to != nullptr) {
      Move(to, from + (unpack_.at - Begin(unpack_.tile)) * element_bytes_, run * element_bytes_, large_, budget);
    }
    unpack_.at += run;
  }
  return true;
}

bool ShmMove::CopyLocal(int64_t* budget) {
  if (!met_ || local_done_ == local_.count) return false;
  while (local_done_ < local_.count && *budget > 0) {
    local_input_cursor_.Seek(local_input_ + local_done_);
    local_output_cursor_.Seek(local_.first + local_done_);
    int64_t run = std::min(local_.count - local_done_, PieceElements(*budget));
    run = local_output_cursor_.Run(local_input_cursor_.Run(run));
    const std::byte* const from = local_input_cursor_.input();
    std::byte* const to = local_output_cursor_.output();
    if (to != nullptr && to != from) Move(to, from, run * element_bytes_, large_, budget);
    local_done_ += run;
  }
  return true;
}

}  // namespace

std::unique_ptr<ShmOperation> MakeShmMove(ShmQueue* queue, Collective collective) {
  return std::make_unique<ShmMove>(queue, std::move(collective));
}

}  // namespace horocache::data
