// reducescatter over tiles: a rank packs a part for each other rank, and folds its own part straight from its private
// input and the others' slots into its output. The rows for each rank travel in the first tile: a rank that has joined
// learns them there, and all ranks compare them.
//
// Example: 3 ranks reduce 9 rows, with the splits 4, 3 and 2. In rank 1's slot, place 0 holds its rows 0 to 3 for rank
// 0, and place 1 its rows 7 and 8 for rank 2. Rank 1 folds row 4 to 6 of rank 0's slot (place 0 there), of its own
// input, and of rank 2's slot (place 1 there).

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "data/backends/segment_cursor.h"
#include "data/backends/shm/task.h"
#include "data/row_layout.h"

namespace horocache::data {
namespace {

class ShmReducescatter : public ShmTask {
 public:
  ShmReducescatter(ShmQueue* queue, Collective collective) : ShmTask(queue, std::move(collective)) {
    capacity_ = port_.tile_bytes() / std::max(1, size() - 1) / 64 * 64 / element_bytes_;
    header_count_ = collective_.segments.empty() ? 0 : collective_.segments[0].count;
    PrepareFold(*queue->kernels);
    if (joined(rank())) return;
    StatusOr<std::vector<int64_t>> splits = SplitsOf(collective_, rank(), size());
    if (splits.ok()) {
      rows_ = std::move(*splits);
      Plan();
    } else {
      Refuse(splits.status());
    }
  }

 private:
  bool StepTiles(int64_t* budget) override { return FoldSome(budget) || Pack(budget); }
  bool Complete() const override { return fold_.tile == tiles_; }

  void Plan() {
    parts_ = PartsOf(rows_, collective_.row_elements);
    tiles_ = static_cast<uint64_t>(std::max<int64_t>(1, (LongestOf(parts_) + capacity_ - 1) / capacity_));
  }

  int64_t Begin(uint64_t tile) const { return static_cast<int64_t>(tile) * capacity_; }
  int64_t End(int owner, uint64_t tile) const { return std::min(parts_[owner].count, Begin(tile) + capacity_); }
  // The address in this rank's input of element `at` of the part of `owner`.
  const std::byte* Input(int owner, int64_t at) const {
    const std::byte* const base = collective_.segments[0].input;
    return base == nullptr ? nullptr : base + (parts_[owner].first + at) * element_bytes_;
  }
  // The address in `source`'s slot of element `at` of the part of `owner`.
  std::byte* InSlot(int source, int owner, uint64_t tile, int64_t at) {
    const int place = owner < source ? owner : owner - 1;
    return port_.payload(source, Number(tile)) + (place * capacity_ + at - Begin(tile)) * element_bytes_;
  }

  bool Pack(int64_t* budget);
  bool FoldSome(int64_t* budget);
  void FoldPiece(int64_t end, int64_t* budget);
  bool PlanAfterFirstTiles();
  // The rows for each rank, as `rank` has published them in its first tile.
  std::vector<int64_t> PublishedRows(int rank) {
    const int64_t* const published = port_.exchange(rank, Number(0));
    return {published, published + size()};
  }
  bool SameRows();

  int64_t capacity_ = 0;  // elements of each part in one tile
  std::vector<int64_t> rows_;
  std::vector<RowPart> parts_;  // by owner
  bool planned_ = false;
  std::byte* result_ = nullptr;
  Stage pack_, fold_;
  int pack_owner_ = 0;
};

bool ShmReducescatter::Pack(int64_t* budget) {
  if (pack_.tile == tiles_ || (pack_.tile > 0 && !PlanAfterFirstTiles())) return false;
  if (ended()) return true;
  const uint64_t tile = pack_.tile;
  if (!pack_.open) {
    if (!port_.SlotFree(Number(tile))) return Block(Wait::kConsumed, tile);
    pack_.open = true;
    pack_owner_ = joined(rank()) || refused() ? size() : 0;
    pack_.at = Begin(tile);
  }
  for (; pack_owner_ < size(); ++pack_owner_, pack_.at = Begin(tile)) {
    if (pack_owner_ == rank()) continue;
    const int64_t end = End(pack_owner_, tile);
    while (pack_.at < end && *budget > 0) {
      const int64_t run = std::min(end - pack_.at, PieceElements(*budget));
      Move(InSlot(rank(), pack_owner_, tile, pack_.at), Input(pack_owner_, pack_.at), run * element_bytes_, true,
           budget);
      pack_.at += run;
    }
    if (pack_.at < end) return true;
  }
  if (tile == 0) {
    std::copy(rows_.begin(), rows_.end(), port_.exchange(rank(), Number(0)));
    PublishFirst();
  } else {
    port_.PublishPacked(Number(tile));
  }
  pack_.Next();
  return true;
}

// Waits for the first tiles of all ranks and, if the result is large, for the confirmations of all ranks that they have
// memory; false while it waits. Ends the operation if the ranks differ or one has no memory.
bool ShmReducescatter::PlanAfterFirstTiles() {
  if (!planned_) {
    if (!HeadersArrived()) return false;
    if (ended()) return true;
    planned_ = true;
    if (!SameRows()) return true;
    if (collective_.output != nullptr) collective_.output->rows = rows_;
    result_ = AllocateResult(parts_[rank()].count * element_bytes_, LongestOf(parts_) * element_bytes_);
  }
  return AllAllocated();
}

// Compares the rows of all ranks that have data with those of the first such rank. Ends the operation and returns false
// if they differ. A joined rank adopts them.
bool ShmReducescatter::SameRows() {
  const int first = contributors().front();
  std::vector<int64_t> expected = PublishedRows(first);
  for (const int r : contributors()) {
    const Status same = CompareRows(collective_, first, expected, r, PublishedRows(r));
    if (same.ok()) continue;
    EndAfterFirstTile(same);
    return false;
  }
  if (!joined(rank())) return true;
  rows_ = std::move(expected);
  Plan();
  return true;
}

bool ShmReducescatter::FoldSome(int64_t* budget) {
  if (fold_.tile == pack_.tile) return false;
  if (!fold_.open) {
    if (!(fold_.tile == 0 ? PlanAfterFirstTiles() : AllPacked(fold_.tile))) return false;
    if (ended()) return true;
    fold_.open = true;
    fold_.at = Begin(fold_.tile);
  }
  const int64_t end = result_ == nullptr ? 0 : End(rank(), fold_.tile);
  while (fold_.at < end && *budget > 0) FoldPiece(end, budget);
  if (fold_.at < end) return true;
  port_.PublishConsumed(Number(fold_.tile));
  fold_.Next();
  return true;
}

void ShmReducescatter::FoldPiece(int64_t end, int64_t* budget) {
  const int64_t run = std::min(end - fold_.at, PieceElements(*budget));
  FoldCall call;
  FoldInRankOrder(&call, [this](int r) -> const std::byte* {
    return r == rank() ? Input(r, fold_.at) : InSlot(r, rank(), fold_.tile, fold_.at);
  });
  call.count = run;
  call.output = result_ + fold_.at * element_bytes_;
  call.stream_output = Large(parts_[rank()].count * element_bytes_);
  FoldNow(call, budget);
  fold_.at += run;
}

}  // namespace

std::unique_ptr<ShmTask> MakeShmReducescatter(ShmQueue* queue, Collective collective) {
  return std::unique_ptr<ShmReducescatter>(new (queue) ShmReducescatter(queue, std::move(collective)));
}

}  // namespace horocache::data
