// allgather, broadcast, alltoall, gather, scatter and barrier: operations that only move elements.
//
// A sender packs one part for all receivers (allgather, broadcast, gather), or one part for each other rank (alltoall,
// scatter), tile by tile. The receivers copy the parts from the slots to their results. If the numbers of rows may
// differ between ranks, they travel in the first tile together with the first elements, so that a small operation needs
// only one exchange. The first tile also carries the rows that a rank expects and their starts in its result, if the
// caller gave any, so that all ranks find the same errors in them. A rank copies the part for itself straight from its
// input to its output.

#include <algorithm>
#include <memory>
#include <utility>

#include "data/backends/segment_cursor.h"
#include "data/backends/shm/task.h"
#include "data/row_layout.h"
#include "data/zero_fill.h"

namespace horocache::data {
namespace {

// A flag in the first number of rows that a rank publishes: the rank publishes its expectations, too.
constexpr int64_t kHasExpectations = int64_t{1} << 62;
// The first number of a list of expectations that the caller did not give.
constexpr int64_t kNotGiven = -1;

class ShmDataMovement : public ShmTask {
 public:
  ShmDataMovement(ShmQueue* queue, Collective collective);

 private:
  bool StepTiles(int64_t* budget) override;
  bool Complete() const override {
    return all_ready_ && pack_.tile == tiles_ && unpack_.tile == tiles_ && local_done_ == local_.count && gaps_.done();
  }

  void PlanSends();
  bool PlanAfterFirstTiles();
  void PublishRows();
  Status ReadExchange();
  // Rows that `rank` receives from each rank, from the first tiles of all ranks.
  std::vector<int64_t> RowsFor(int rank);
  StatusOr<ReceivePlan> PlanOf(int rank, const std::vector<int64_t>& rows);
  // `most_elements` bounds the elements of any rank's result. PlanReceives gets the bound for results without uncovered
  // rows, and raises it where ranks expect more.
  Status PlanReceives(int64_t most_elements);
  void Allocate(const ReceivePlan& plan, int64_t most_elements);

  bool Pack(int64_t* budget);
  void PackPart(size_t index, int64_t end, int64_t* budget);
  bool Unpack(int64_t* budget);
  bool UnpackFrom(int source, int64_t* budget);
  bool CopyLocal(int64_t* budget);
  bool FillGaps(int64_t* budget);

  // A tile holds the elements [Begin, End) of a part.
  int64_t Begin(uint64_t tile) const { return static_cast<int64_t>(tile) * capacity_; }
  int64_t End(const RowPart& part, uint64_t tile) const { return std::min(part.count, Begin(tile) + capacity_); }
  // The address of part number `index` in `source`'s slot.
  std::byte* Place(int source, uint64_t tile, size_t index) {
    if (in_header_) return port_.header_data(source, Number(tile));
    return port_.payload(source, Number(tile)) + static_cast<int64_t>(index) * capacity_ * element_bytes_;
  }
  bool is_root() const { return collective_.root == rank(); }
  // True if this rank sends, or receives, in an operation that exchanges rows.
  bool gives() const { return !joined(rank()) && (collective_.op != wire::Op::kScatter || is_root()); }
  bool takes() const { return !joined(rank()) && (collective_.op != wire::Op::kGather || is_root()); }

  bool split_ = false;      // one part for each other rank
  bool exchanges_ = false;  // numbers of rows may differ between ranks
  bool in_header_ = false;
  bool large_ = false;
  bool planned_ = false;
  bool all_ready_ = false;
  int64_t capacity_ = 0;           // elements of each part in one tile
  std::vector<int64_t> row_list_;  // the rows that this rank publishes: one number, or one for each rank
  bool announces_rows_ = false;    // this rank publishes its expectations
  std::vector<RowPart> sends_;     // by index in the slot
  std::vector<RowPart> receives_;  // by source; this rank's own part is empty
  RowPart local_;                  // this rank's part for itself, in the output
  int64_t local_input_ = 0;        // first element of local_ in the input
  int64_t local_done_ = 0;
  std::vector<Segment> result_;  // the one output of an operation that exchanges rows
  ZeroFiller gaps_;
  Stage pack_, unpack_;
  size_t pack_part_ = 0;
  int unpack_source_ = 0;
  SegmentCursor input_cursor_, output_cursor_, local_input_cursor_, local_output_cursor_;
};

ShmDataMovement::ShmDataMovement(ShmQueue* queue, Collective collective) : ShmTask(queue, std::move(collective)) {
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
    in_header_ = total * element_bytes_ <= ShmPort::kHeaderDataBytes;
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

void ShmDataMovement::PlanSends() {
  row_list_.assign(split_ ? size() : 1, 0);
  StatusOr<std::vector<RowPart>> parts = SendParts(collective_, rank(), size());
  if (!parts.ok()) return Refuse(parts.status());
  if (Status receive = CheckReceive(collective_, rank(), size()); !receive.ok()) return Refuse(std::move(receive));
  if (!gives()) return;
  announces_rows_ = takes() && !(collective_.receive_rows.empty() && collective_.receive_starts.empty());
  if (split_) {
    row_list_ = *SplitsOf(collective_, rank(), size());  // cannot fail: SendParts has checked it
    local_input_ = (*parts)[rank()].first;
    for (int d = 0; d < size(); ++d) {
      if (joined(d)) row_list_[d] = 0;
      if (d != rank()) sends_.push_back((*parts)[d]);
    }
    return;
  }
  row_list_[0] = *RowsOf(collective_, rank());
  // The root of a gather sends nothing.
  if (!is_root()) sends_.push_back({0, row_list_[0] * collective_.row_elements});
}

bool ShmDataMovement::StepTiles(int64_t* budget) {
  if (pack_.tile > 0 && !all_ready_) return PlanAfterFirstTiles();
  return Unpack(budget) || Pack(budget) || CopyLocal(budget) || FillGaps(budget);
}

// Waits for the first tiles of all ranks, which have everything that a rank needs to plan its receives; then, if
// results are large, for the confirmations of all ranks that they have memory. False while it waits.
bool ShmDataMovement::PlanAfterFirstTiles() {
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
  all_ready_ = !ended();
  return true;
}

void ShmDataMovement::PublishRows() {
  int64_t* const published = port_.exchange(rank(), Number(0));
  std::copy(row_list_.begin(), row_list_.end(), published);
  if (!announces_rows_) return;
  published[0] |= kHasExpectations;
  int64_t* to = port_.expectations(rank(), Number(0));
  for (const std::vector<int64_t>* list : {&collective_.receive_rows, &collective_.receive_starts}) {
    if (list->empty()) {
      *to = kNotGiven;
    } else {
      std::copy(list->begin(), list->end(), to);
    }
    to += size();
  }
}

std::vector<int64_t> ShmDataMovement::RowsFor(int rank) {
  std::vector<int64_t> rows(size());
  for (int q = 0; q < size(); ++q) {
    rows[q] = port_.exchange(q, Number(0))[split_ ? rank : 0] & ~kHasExpectations;
  }
  return rows;
}

// The layout of `rank`'s result, from the expectations that it has published. Every rank checks the layouts of all
// ranks that publish expectations.
StatusOr<ReceivePlan> ShmDataMovement::PlanOf(int rank, const std::vector<int64_t>& rows) {
  Collective theirs;
  theirs.op = collective_.op;
  theirs.dtype = collective_.dtype;
  theirs.root = collective_.root;
  theirs.row_elements = collective_.row_elements;
  theirs.elements_elsewhere = collective_.elements_elsewhere;
  theirs.joined = collective_.joined;
  theirs.names = collective_.names;
  const int64_t* from = port_.expectations(rank, Number(0));
  for (std::vector<int64_t>* list : {&theirs.receive_rows, &theirs.receive_starts}) {
    if (*from != kNotGiven) list->assign(from, from + size());
    from += size();
  }
  return PlanReceive(theirs, rows, rank, size());
}

// Reads the numbers of rows of all ranks. Every rank computes the same number of tiles, and the same errors.
Status ShmDataMovement::ReadExchange() {
  constexpr int64_t kMost = int64_t{1} << 60;
  const int64_t row_bytes = std::max<int64_t>(1, collective_.row_elements * element_bytes_);
  int64_t longest = 0;
  int64_t total = 0;
  for (int q = 0; q < size(); ++q) {
    const int64_t* published = port_.exchange(q, Number(0));
    for (size_t d = 0; d < row_list_.size(); ++d) {
      const int64_t rows = published[d] & ~kHasExpectations;
      if (rows < 0 || rows > kMost / row_bytes / size()) {
        return Status(StatusCode::kMismatch, collective_.Rank(q) + " sends " + std::to_string(rows) + " rows of " +
                                                 std::to_string(row_bytes) + " bytes");
      }
      const bool stays = split_ ? static_cast<int>(d) == q : collective_.root == q;
      if (!stays) longest = std::max(longest, rows * collective_.row_elements);
      total += rows;
    }
  }
  tiles_ = static_cast<uint64_t>(std::max<int64_t>(1, (longest + capacity_ - 1) / capacity_));
  return PlanReceives(total * collective_.row_elements);
}

Status ShmDataMovement::PlanReceives(int64_t most_elements) {
  for (int q = 0; q < size(); ++q) {
    if ((port_.exchange(q, Number(0))[0] & kHasExpectations) == 0) continue;
    StatusOr<ReceivePlan> plan = PlanOf(q, RowsFor(q));
    if (!plan.ok()) return plan.status();
    most_elements = std::max(most_elements, plan->elements);
  }
  std::vector<int64_t> rows = takes() ? RowsFor(rank()) : std::vector<int64_t>(size(), 0);
  StatusOr<ReceivePlan> plan = PlanReceive(collective_, rows, rank(), size());
  if (!plan.ok()) return plan.status();
  if (collective_.output != nullptr) collective_.output->rows = std::move(rows);
  Allocate(*plan, most_elements);
  return Status::Ok();
}

void ShmDataMovement::Allocate(const ReceivePlan& plan, int64_t most_elements) {
  receives_ = plan.parts;
  local_ = std::exchange(receives_[rank()], {});
  std::byte* const base = AllocateResult(plan.elements * element_bytes_, most_elements * element_bytes_);
  result_.push_back({nullptr, base, plan.elements});
  if (base == nullptr) {
    receives_.assign(size(), RowPart());
    local_.count = 0;
  }
  gaps_ = ZeroFiller(plan, collective_.ZeroedIn(base), element_bytes_);
  large_ = Large(plan.elements * element_bytes_);
  const auto width = static_cast<size_t>(element_bytes_);
  output_cursor_ = local_output_cursor_ = SegmentCursor(&result_, width);
}

bool ShmDataMovement::Pack(int64_t* budget) {
  if (pack_.tile == tiles_) return false;
  const uint64_t tile = pack_.tile;
  const auto sends_now = [&](const RowPart& part) { return part.count > Begin(tile); };
  if (tile > 0 && std::none_of(sends_.begin(), sends_.end(), sends_now)) {
    pack_.Next();
    return true;
  }
  if (!pack_.open) {
    if (!port_.SlotFree(Number(tile))) return Block(Wait::kConsumed, tile);
    pack_.open = true;
    pack_part_ = 0;
    pack_.at = Begin(tile);
    if (tile == 0) PublishRows();
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

void ShmDataMovement::PackPart(size_t index, int64_t end, int64_t* budget) {
  input_cursor_.Seek(sends_[index].first + pack_.at);
  const int64_t run = input_cursor_.Run(std::min(end - pack_.at, PieceElements(*budget)));
  std::byte* const to = Place(rank(), pack_.tile, index) + (pack_.at - Begin(pack_.tile)) * element_bytes_;
  Move(to, input_cursor_.input(), run * element_bytes_, true, budget);
  pack_.at += run;
}

bool ShmDataMovement::Unpack(int64_t* budget) {
  if (!all_ready_ || unpack_.tile == tiles_) return false;
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

// Copies the part from `source` in the current tile; false if the budget ran out.
bool ShmDataMovement::UnpackFrom(int source, int64_t* budget) {
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

bool ShmDataMovement::CopyLocal(int64_t* budget) {
  if (!all_ready_ || local_done_ == local_.count) return false;
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

bool ShmDataMovement::FillGaps(int64_t* budget) {
  if (!all_ready_ || gaps_.done()) return false;
  while (!gaps_.done() && *budget > 0) {
    const int64_t bytes = gaps_.Fill(PieceElements(*budget));
    queue_.counters.bytes_copied += static_cast<uint64_t>(bytes);
    Charge(bytes, budget);
  }
  return true;
}

}  // namespace

std::unique_ptr<ShmTask> MakeShmMove(ShmQueue* queue, Collective collective) {
  return std::unique_ptr<ShmDataMovement>(new (queue) ShmDataMovement(queue, std::move(collective)));
}

}  // namespace horocache::data
