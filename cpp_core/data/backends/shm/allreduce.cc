// allreduce and reduce over tiles, with one of three algorithms. The algorithm is chosen by size in algorithms.h.
// All examples have 4 ranks and float32, of which a cache line holds 16 elements.
//
// One-shot: every rank packs its whole tile into its slot. Every rank that gets the result then folds the tile by
// itself, from its own input and the others' slots, in rank order.
// Example: for 1,000 elements, each rank packs 4,000 bytes and reads 16,000 bytes. Up to kHeaderDataBytes (8 elements),
// the data travels in the cache line of the tile's header.
//
// Two-shot: a tile is cut into one slice per rank, in whole cache lines. A rank packs the slices of the other ranks. It
// folds its own slice straight from its private input and the others' slots, and writes the result both to its private
// output and to the part of its slot that it left free when it packed. It then copies the other slices of the result
// from the slots of their owners.
// Example: a tile of 1,000 elements has the slices [0, 256), [256, 512), [512, 768) and [768, 1000). Rank 1 packs all
// but [256, 512). When all ranks have packed, it folds [256, 512) of ranks 0 to 3 in this order and publishes it as
// reduced. It copies [0, 256) of the result from the slot of rank 0, [512, 768) from that of rank 2, and so on.
//
// Direct: all ranks' tensors lie in their regions, which all ranks have mapped. Each rank folds its slice of the whole
// operation (which then has a single tile) straight from all inputs, and stores the result in all outputs. Nothing is
// copied; every byte is read once and written once, for any number of ranks.
// Example: of 1,000,000 elements, rank 1 owns [250000, 500000). It reads this slice of all four inputs in pieces of up
// to 64 KiB and stores each piece of the result in all four outputs. It then publishes `reduced`, and is finished when
// all ranks have done so.
// Direct runs an allreduce without joined ranks. First, each rank announces where its tensors lie. If a rank's tensors
// are not in its region, all ranks go on with two-shot.
//
// Many small tensors: instead of one fold per tensor, a rank gathers a piece of up to 8 KiB from many tensors, folds it
// as a whole, and scatters the result.
//
// The oldest tile has priority. A rank packs ahead only while it would otherwise wait, so that few slots occupy the
// caches.

#include <algorithm>
#include <memory>
#include <utility>

#include "base/memory.h"
#include "data/backends/segment_cursor.h"
#include "data/backends/shm/task.h"
#include "data/kernels/copy.h"

namespace horocache::data {
namespace {

// Bytes of the largest piece of a direct fold: its result stays in a near cache while it is stored in all outputs.
constexpr int64_t kNearBytes = 64 << 10;
// Average bytes of a tensor up to which one more copy costs less than a separate fold for each tensor.
constexpr int64_t kSmallBytes = 512;

struct Range {
  int64_t begin = 0, end = 0;
};

class ShmAllreduce : public ShmTask {
 public:
  ShmAllreduce(ShmQueue* queue, Collective collective) : ShmTask(queue, std::move(collective)) {
    for (const Segment& segment : collective_.segments) total_ += segment.count;
    header_count_ = total_;
    const int64_t bytes = total_ * element_bytes_;
    large_ = Large(bytes);
    if (collective_.algorithm == kAuto) collective_.algorithm = bytes <= queue->oneshot_max_bytes ? kOneshot : kDirect;
    oneshot_ = collective_.algorithm == kOneshot;
    if (collective_.algorithm != kDirect) way_ = Way::kStaged;
    in_header_ = oneshot_ && bytes <= ShmPort::kHeaderDataBytes;
    tile_elements_ = port_.tile_bytes() / element_bytes_;
    tiles_ = static_cast<uint64_t>(std::max<int64_t>(1, (total_ + tile_elements_ - 1) / tile_elements_));
    wants_ = !joined(rank()) && (collective_.op == wire::Op::kAllreduce || collective_.root == rank());
    const auto tensors = static_cast<int64_t>(collective_.segments.size());
    small_ = tensors > 1 && bytes / tensors <= kSmallBytes;
    PrepareFold(*queue->kernels);
    const auto width = static_cast<size_t>(element_bytes_);
    pack_cursor_ = fold_cursor_ = unpack_cursor_ = SegmentCursor(&collective_.segments, width);
  }

 private:
  enum class Way { kOpen, kAnnounced, kDirect, kStaged };

  bool StepTiles(int64_t* budget) override {
    switch (way_) {
      case Way::kOpen:
        return Announce();
      case Way::kAnnounced:
        return Decide();
      case Way::kDirect:
        return FoldDirect(budget);
      case Way::kStaged:
        break;
    }
    return Unpack(budget) || FoldSome(budget) || Pack(budget);
  }
  bool Complete() const override { return (oneshot_ ? fold_.tile : unpack_.tile) == tiles_; }

  Range Tile(uint64_t tile) const {
    const int64_t begin = static_cast<int64_t>(tile) * tile_elements_;
    return {begin, std::min(begin + tile_elements_, total_)};
  }

  // The part of a tile that `owner` folds. Slices consist of whole cache lines, except at the end of the tile.
  Range Slice(uint64_t tile, int owner) const { return SliceOf(Tile(tile), owner); }

  Range SliceOf(Range all, int owner) const {
    const int64_t share = RoundUp((all.end - all.begin + size() - 1) / size(), kCacheLine / element_bytes_);
    return {std::min(all.begin + owner * share, all.end), std::min(all.begin + (owner + 1) * share, all.end)};
  }

  // The address of element `at` (counted through the operation) of a tile in `owner`'s slot.
  std::byte* InSlot(int owner, uint64_t tile, int64_t at) {
    if (in_header_) return port_.header_data(owner, Number(tile)) + at * element_bytes_;
    return port_.payload(owner, Number(tile)) + (at - Tile(tile).begin) * element_bytes_;
  }

  // The most elements of a piece of small tensors.
  int64_t SmallRun() const { return ShmQueue::kScratchBytes / element_bytes_; }

  bool MayBeDirect() const {
    return collective_.op == wire::Op::kAllreduce && collective_.joined.empty() && !port_.region(rank()).empty();
  }
  bool Announce();
  bool Decide();
  bool FoldDirect(int64_t* budget);
  void FoldDirectPiece(int64_t limit, int64_t* budget);
  bool Pack(int64_t* budget);
  void PackPiece(Range all, int64_t* budget);
  bool FoldSome(int64_t* budget);
  void FoldPiece(int64_t limit, int64_t* budget);
  void FoldSmallPiece(int64_t limit, int64_t* budget);
  bool Unpack(int64_t* budget);
  void UnpackPiece(int64_t limit, int64_t* budget);

  int64_t total_ = 0;
  int64_t tile_elements_ = 0;
  bool oneshot_ = false;
  bool in_header_ = false;
  bool large_ = false;
  bool small_ = false;  // the operation has many tensors, and they are small
  bool wants_ = false;  // this rank gets the result
  Way way_ = Way::kOpen;
  bool announced_ = false;  // this rank announced its tensors, but the ranks go on with two-shot
  Stage pack_, fold_, unpack_;
  int unpack_owner_ = 0;
  SegmentCursor pack_cursor_, fold_cursor_, unpack_cursor_;
};

bool ShmAllreduce::Announce() {
  if (!port_.SlotFree(Number(0))) return Block(Wait::kConsumed, 0);
  if (MayBeDirect() && DirectBuffers::Announce(collective_.segments, element_bytes_, &port_, Number(0))) {
    AnnounceFirst();
    way_ = Way::kAnnounced;
  } else {
    DirectBuffers::AnnounceNone(&port_, Number(0));
    way_ = Way::kStaged;
  }
  return true;
}

// Chooses between direct and two-shot. All ranks decide alike, because they decide by the announcements of all ranks.
bool ShmAllreduce::Decide() {
  if (!HeadersArrived()) return false;
  if (ended()) return true;
  const StatusOr<bool> all = queue_.places.Read(total_, element_bytes_, &port_, Number(0));
  if (!all.ok()) {
    EndAfterFirstTile(all.status());
  } else if (*all) {
    tiles_ = 1;
    way_ = Way::kDirect;
  } else {
    announced_ = true;
    way_ = Way::kStaged;
  }
  return true;
}

bool ShmAllreduce::FoldDirect(int64_t* budget) {
  if (fold_.tile == 1) {
    if (!AllReduced(0)) return false;
    port_.PublishConsumed(Number(0));
    unpack_.Next();
    return true;
  }
  const Range slice = SliceOf({0, total_}, rank());
  if (!fold_.open) {
    fold_.open = true;
    fold_.at = slice.begin;
  }
  while (fold_.at < slice.end && *budget > 0) FoldDirectPiece(slice.end, budget);
  if (fold_.at < slice.end) return true;
  port_.PublishReduced(Number(0));
  fold_.Next();
  return true;
}

// The fold stores the result on this rank and the next one. It is still in a near cache when Spread copies it to the
// other ranks.
void ShmAllreduce::FoldDirectPiece(int64_t limit, int64_t* budget) {
  DirectBuffers& places = queue_.places;
  places.Seek(fold_.at);
  const int64_t run = places.Run(std::min({limit - fold_.at, PieceElements(*budget), kNearBytes / element_bytes_}));
  const int64_t bytes = run * element_bytes_;
  const int next = (rank() + 1) % size();
  FoldCall call;
  FoldInRankOrder(&call, [&places](int r) { return places.input(r); });
  call.count = run;
  call.output = places.output(rank());
  call.second = places.output(next);
  call.stream_second = bytes >= static_cast<int64_t>(kStreamBytes);
  FoldNow(call, budget);
  for (int r = (next + 1) % size(); r != rank(); r = (r + 1) % size()) {
    Spread(places.output(r), places.output(rank()), bytes, budget);
  }
  fold_.at += run;
}

bool ShmAllreduce::Pack(int64_t* budget) {
  if (pack_.tile == tiles_ || (pack_.tile > 0 && !HeadersArrived())) return false;
  if (ended()) return true;
  const Range all = Tile(pack_.tile);
  if (!pack_.open) {
    if (!port_.SlotFree(Number(pack_.tile))) return Block(Wait::kConsumed, pack_.tile);
    pack_.open = true;
    pack_.at = joined(rank()) ? all.end : all.begin;
  }
  while (pack_.at < all.end && *budget > 0) PackPiece(all, budget);
  if (pack_.at < all.end) return true;
  if (pack_.tile == 0 && !announced_) {
    PublishFirst();
  } else {
    port_.PublishPacked(Number(pack_.tile));
  }
  pack_.Next();
  return true;
}

// Packs a piece from pack_.at on, of one segment or of many small ones. Leaves out this rank's own slice.
void ShmAllreduce::PackPiece(Range all, int64_t* budget) {
  const Range own = oneshot_ ? Range{all.end, all.end} : Slice(pack_.tile, rank());
  if (pack_.at == own.begin) {
    pack_.at = own.end;
    return;
  }
  const int64_t limit = pack_.at < own.begin ? own.begin : all.end;
  pack_cursor_.Seek(pack_.at);
  if (small_) {
    const int64_t run = std::min(limit - pack_.at, SmallRun());
    Gather(pack_cursor_, InSlot(rank(), pack_.tile, pack_.at), run, budget);
    pack_.at += run;
    return;
  }
  const int64_t run = pack_cursor_.Run(std::min(limit - pack_.at, PieceElements(*budget)));
  Move(InSlot(rank(), pack_.tile, pack_.at), pack_cursor_.input(), run * element_bytes_, true, budget);
  pack_.at += run;
}

bool ShmAllreduce::FoldSome(int64_t* budget) {
  if (fold_.tile == pack_.tile) return false;
  const Range range = oneshot_ ? Tile(fold_.tile) : Slice(fold_.tile, rank());
  if (!fold_.open) {
    if (!HeadersArrived() || (!ended() && !AllPacked(fold_.tile))) return false;
    if (ended()) return true;
    fold_.open = true;
    fold_.at = oneshot_ && !wants_ ? range.end : range.begin;
  }
  while (fold_.at < range.end && *budget > 0) FoldPiece(range.end, budget);
  if (fold_.at < range.end) return true;
  if (oneshot_) {
    port_.PublishConsumed(Number(fold_.tile));
  } else {
    port_.PublishReduced(Number(fold_.tile));
  }
  fold_.Next();
  return true;
}

// Folds a piece of many small segments, from fold_.at on. The scratch buffer, which stays in a near cache, holds the
// result of a one-shot fold, or this rank's input of a two-shot fold. The slot holds the other of the two.
void ShmAllreduce::FoldSmallPiece(int64_t limit, int64_t* budget) {
  const int64_t run = std::min(limit - fold_.at, SmallRun());
  std::byte* const own = oneshot_ ? InSlot(rank(), fold_.tile, fold_.at) : queue_.scratch.data();
  std::byte* const result = oneshot_ ? queue_.scratch.data() : InSlot(rank(), fold_.tile, fold_.at);
  if (!oneshot_ && !joined(rank())) Gather(fold_cursor_, own, run, budget);
  FoldCall call;
  FoldInRankOrder(&call, [&](int r) { return r == rank() ? own : InSlot(r, fold_.tile, fold_.at); });
  call.count = run;
  call.output = result;
  if (call.num_inputs > 0) FoldNow(call, budget);
  if (wants_ && call.num_inputs > 0) Scatter(fold_cursor_, result, run, budget);
  fold_.at += run;
}

// Folds a piece from fold_.at on, of one segment or of many small ones.
void ShmAllreduce::FoldPiece(int64_t limit, int64_t* budget) {
  fold_cursor_.Seek(fold_.at);
  if (small_) return FoldSmallPiece(limit, budget);
  const int64_t run = fold_cursor_.Run(std::min(limit - fold_.at, PieceElements(*budget)));
  FoldCall call;
  FoldInRankOrder(&call, [this](int r) -> const std::byte* {
    return r == rank() ? fold_cursor_.input() : InSlot(r, fold_.tile, fold_.at);
  });
  call.count = run;
  std::byte* const shared = oneshot_ ? nullptr : InSlot(rank(), fold_.tile, fold_.at);
  std::byte* const own = wants_ ? fold_cursor_.output() : nullptr;
  call.output = own != nullptr ? own : shared;
  call.second = own != nullptr ? shared : nullptr;
  call.stream_second = run * element_bytes_ >= static_cast<int64_t>(kStreamBytes);
  call.stream_output = call.stream_second && (own == nullptr || (large_ && own != fold_cursor_.input()));
  if (call.output != nullptr && call.num_inputs > 0) {
    FoldNow(call, budget);
  } else {
    Charge(0, budget);
  }
  fold_.at += run;
}

// Copies a piece of the result from unpack_.at on, to one segment or to many small ones.
void ShmAllreduce::UnpackPiece(int64_t limit, int64_t* budget) {
  unpack_cursor_.Seek(unpack_.at);
  const std::byte* const from = InSlot(unpack_owner_, unpack_.tile, unpack_.at);
  if (small_) {
    const int64_t run = std::min(limit - unpack_.at, SmallRun());
    Scatter(unpack_cursor_, from, run, budget);
    unpack_.at += run;
    return;
  }
  const int64_t run = unpack_cursor_.Run(std::min(limit - unpack_.at, PieceElements(*budget)));
  if (std::byte* to = unpack_cursor_.output(); to != nullptr) {
    const bool stream = large_ && to != unpack_cursor_.input();
    Move(to, from, run * element_bytes_, stream, budget);
  }
  unpack_.at += run;
}

bool ShmAllreduce::Unpack(int64_t* budget) {
  if (oneshot_ || unpack_.tile == fold_.tile) return false;
  if (!unpack_.open) {
    unpack_.open = true;
    unpack_owner_ = 0;
    unpack_.at = Tile(unpack_.tile).begin;
  }
  bool moved = false;
  for (; wants_ && unpack_owner_ < size(); ++unpack_owner_) {
    const Range slice = Slice(unpack_.tile, unpack_owner_);
    if (unpack_owner_ == rank() || slice.begin == slice.end) continue;
    if (*budget <= 0) return true;
    if (!port_.Reduced(unpack_owner_, Number(unpack_.tile))) return Block(Wait::kReduced, unpack_.tile) || moved;
    unpack_.at = std::max(unpack_.at, slice.begin);
    for (; unpack_.at < slice.end; moved = true) {
      if (*budget <= 0) return true;
      UnpackPiece(slice.end, budget);
    }
  }
  port_.PublishConsumed(Number(unpack_.tile));
  unpack_.Next();
  return true;
}

}  // namespace

std::unique_ptr<ShmTask> MakeShmFold(ShmQueue* queue, Collective collective) {
  return std::unique_ptr<ShmAllreduce>(new (queue) ShmAllreduce(queue, std::move(collective)));
}

}  // namespace horocache::data
