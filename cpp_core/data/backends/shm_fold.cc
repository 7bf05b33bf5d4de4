// allreduce and reduce over tiles.
//
// One-shot: every rank packs all of its tile; every rank that wants the result folds all ranks' tiles by itself.
// Two-shot: a tile is cut into one slice for each rank. A rank packs the slices of the others, folds its own straight
// from its private input and the others' slots, writes the result at once to its private output and into the gap that
// its own slice left in its slot, and copies the other slices of the result from the others' slots.
// Direct: all ranks' tensors are in their regions, which all have mapped. Each rank folds its slice of the whole
// straight from all inputs and stores the result in all outputs. Nothing is copied; every byte is read once and written
// once, whatever the number of ranks.
// Which it is, says a table: see shm_algorithms.h. Whether direct can be is known when all have announced where their
// tensors are: a rank that could, and finds one that cannot, goes on with two-shot.
// Where tensors are very many and small, a piece is not a part of one tensor: it is folded as one between a gather from
// all of them and a scatter to them.
// The oldest tile goes first: a rank packs ahead only while it would wait, so few slots travel through the caches.

#include <algorithm>
#include <memory>
#include <utility>

#include "base/memory.h"
#include "data/backends/segment_cursor.h"
#include "data/backends/shm_operation.h"
#include "data/kernels/copy.h"

namespace horocache::data {
namespace {

// Of a result, while it is stored on several ranks.
constexpr int64_t kNearBytes = 64 << 10;
// Of a tensor, on average: where a copy more costs less than a fold for each.
constexpr int64_t kSmallBytes = 512;

struct Range {
  int64_t begin = 0, end = 0;
};

class ShmFold : public ShmOperation {
 public:
  ShmFold(ShmQueue* queue, Collective collective) : ShmOperation(queue, std::move(collective)) {
    for (const Segment& segment : collective_.segments) total_ += segment.count;
    header_count_ = total_;
    const int64_t bytes = total_ * element_bytes_;
    large_ = Large(bytes);
    if (collective_.algorithm == kAuto) collective_.algorithm = bytes <= queue->oneshot_max_bytes ? kOneshot : kDirect;
    oneshot_ = collective_.algorithm == kOneshot;
    if (collective_.algorithm != kDirect) way_ = Way::kStaged;
    inline_ = oneshot_ && bytes <= ShmPort::kInlineBytes;
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

  // The part of a tile that `owner` folds, in whole cache lines but for the last one.
  Range Slice(uint64_t tile, int owner) const { return SliceOf(Tile(tile), owner); }

  Range SliceOf(Range all, int owner) const {
    const int64_t share = RoundUp((all.end - all.begin + size() - 1) / size(), kCacheLine / element_bytes_);
    return {std::min(all.begin + owner * share, all.end), std::min(all.begin + (owner + 1) * share, all.end)};
  }

  // Where element `at` of a tile lies in `owner`'s slot.
  std::byte* InSlot(int owner, uint64_t tile, int64_t at) {
    if (inline_) return port_.inline_payload(owner, Number(tile)) + at * element_bytes_;
    return port_.payload(owner, Number(tile)) + (at - Tile(tile).begin) * element_bytes_;
  }

  // Elements of one go where tensors are small.
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
  bool inline_ = false;
  bool large_ = false;
  bool small_ = false;  // there are many tensors, and they are small
  bool wants_ = false;
  Way way_ = Way::kOpen;
  bool announced_ = false;  // where this rank's tensors are; in vain
  Stage pack_, fold_, unpack_;
  int unpack_owner_ = 0;
  SegmentCursor pack_cursor_, fold_cursor_, unpack_cursor_;
};

bool ShmFold::Announce() {
  if (!port_.SlotFree(Number(0))) return Block(Wait::kConsumed, 0);
  if (MayBeDirect() && RegionPlaces::Announce(collective_.segments, element_bytes_, &port_, Number(0))) {
    AnnounceFirst();
    way_ = Way::kAnnounced;
  } else {
    RegionPlaces::AnnounceNone(&port_, Number(0));
    way_ = Way::kStaged;
  }
  return true;
}

// All ranks decide alike: by what all of them have announced.
bool ShmFold::Decide() {
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

bool ShmFold::FoldDirect(int64_t* budget) {
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

// The piece of the own result is still in a near cache when it goes to the third rank and those after it.
void ShmFold::FoldDirectPiece(int64_t limit, int64_t* budget) {
  RegionPlaces& places = queue_.places;
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

bool ShmFold::Pack(int64_t* budget) {
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

// What lies in one segment, from pack_.at on; this rank's own slice is left out.
void ShmFold::PackPiece(Range all, int64_t* budget) {
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

bool ShmFold::FoldSome(int64_t* budget) {
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

// Folds what lies in many segments, from fold_.at on, in memory that stays near: the result, where it is not in the
// slot anyway, and what a two-shot fold does not find in this rank's slot.
void ShmFold::FoldSmallPiece(int64_t limit, int64_t* budget) {
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

// Folds what lies in one segment, from fold_.at on.
void ShmFold::FoldPiece(int64_t limit, int64_t* budget) {
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

// Copies what lies in one segment, or in many small ones, from unpack_.at on.
void ShmFold::UnpackPiece(int64_t limit, int64_t* budget) {
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

bool ShmFold::Unpack(int64_t* budget) {
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

std::unique_ptr<ShmOperation> MakeShmFold(ShmQueue* queue, Collective collective) {
  return std::unique_ptr<ShmFold>(new (queue) ShmFold(queue, std::move(collective)));
}

}  // namespace horocache::data
