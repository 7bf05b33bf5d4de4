// allreduce and reduce over MPI with the fold of the shm backend, tile by tile. The ranks exchange the slices of their
// inputs, each rank folds its own slice in rank order, and sends the result to all ranks, or to the root. The bits are
// those of shared memory. For n ranks, each rank sends 2 (n - 1) / n times the bytes of an allreduce, the minimum.
//
// Two tiles are under way at a time, so that one is between the ranks while the other is folded. A single tensor is
// sent from the caller's memory; several tensors are packed first.
//
// Example: 4 ranks on several hosts reduce 12 MiB, so there are 3 tiles of 4 MiB, each with 4 slices of 1 MiB. In tile
// 0, rank 1 sends slice 0 to rank 0, slice 2 to rank 2 and slice 3 to rank 3, and receives slice 1 from each of them.
// It folds slice 1 of ranks 0 to 3 in this order, sends the result (1 MiB) to the three other ranks, and receives the
// results of slices 0, 2 and 3. It has then sent 6 MiB for 4 MiB of the tensor. While it folds tile 0, the slices of
// tile 1 are on their way; tile 2 begins when tile 0 has ended.
//
// Note [Results around the caches]
// A rank sends its input, and then receives the results at the same addresses. On one host the library copies straight
// from one process to the other, so the peer's processor has just read and cached those lines. A plain store must first
// invalidate them: where the processors share no cache, an allreduce of 16 MiB received in place took 6.0 instead of
// 3.3 ms. So a rank receives large results into buffers that no other rank reads, and copies them from there with
// streaming stores; see Note [Writing around the caches] in data/kernels/copy.h. For the same reason it packs with
// streaming stores. Where the processors share a cache, this is up to 1.5 times as slow as in place, but still as fast
// as the library's own allreduce, except for tensors that fit into the cache. Those (kCachedBytes) are received in
// place, which is as fast as the library's even where the processors share no cache.

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "data/backends/mpi/slices.h"
#include "data/backends/segment_cursor.h"

namespace horocache::data {
namespace {

constexpr int kGatherTag = 4;
// Bytes of a tile on one host, where small tiles stay in the caches. Up to kUncutBytesOnOneHost, an operation is one
// tile, because cutting it gains nothing.
constexpr int64_t kTileBytesOnOneHost = 1 << 20, kUncutBytesOnOneHost = 2 << 20;
// Size in bytes up to which results are received in place. See Note [Results around the caches].
constexpr int64_t kCachedBytes = 4 << 20;

class MpiAllFold final : public MpiSlices {
 public:
  MpiAllFold(MpiQueue* queue, Collective collective)
      : MpiSlices(queue, std::move(collective)),
        reduces_to_root_(collective_.op == wire::Op::kReduce),
        takes_(!joined(rank()) && (!reduces_to_root_ || collective_.root == rank())),
        direct_(collective_.segments.size() == 1 && !joined(rank())),
        around_(total() * element_bytes_ > kCachedBytes),
        tile_elements_(std::min(TileBytes() / element_bytes_, queue->max_count)) {
    pack_cursor_ = unpack_cursor_ = SegmentCursor(&collective_.segments, static_cast<size_t>(element_bytes_));
  }

 private:
  enum class State { kIdle, kPacking, kExchanging, kFolding, kGathering, kUnpacking };
  // The state of one tile, from packing to unpacking. Tiles use the two slots in turn.
  struct Slot {
    State state = State::kIdle;
    int64_t begin = 0, count = 0;      // elements
    int64_t share = 0;                 // elements of a slice, in whole cache lines
    int64_t at = 0;                    // elements packed or unpacked so far
    const std::byte* input = nullptr;  // this rank's input for the tile; null on a joined rank
    std::byte* packed = nullptr;       // the buffer for an input of several tensors
    Exchange exchange;

    int OwnerOf(int64_t element) const { return static_cast<int>(element / share); }
    int64_t First(int owner) const { return std::min(owner * share, count); }
    int64_t Count(int owner) const { return First(owner + 1) - First(owner); }
  };

  int64_t TileBytes() const {
    if (!queue_.OneHost()) return kTileBytes;
    return total() * element_bytes_ <= kUncutBytesOnOneHost ? kUncutBytesOnOneHost : kTileBytesOnOneHost;
  }
  bool Step(int64_t* budget) override;
  bool Advance(Slot* slot, int64_t* budget);
  bool Begin();
  bool Pack(Slot* slot, int64_t* budget);
  Slice SliceOf(const Slot& slot, int owner) const {
    const int64_t offset = slot.First(owner) * element_bytes_;
    return {slot.input == nullptr ? nullptr : slot.input + offset, slot.Count(owner)};
  }
  bool Unpack(Slot* slot, int64_t* budget);
  std::byte* ResultOf(const Slot& slot, int owner) const;
  Status StartSlices(Slot* slot);
  Status Gather(Slot* slot);
  Slot& SlotOf(int64_t number) { return slots_[static_cast<size_t>(number % 2)]; }

  const bool reduces_to_root_;
  const bool takes_;   // this rank gets the result
  const bool direct_;  // MPI sends from the caller's memory
  const bool around_;  // results and packed inputs are written around the caches
  const int64_t tile_elements_;
  std::array<Slot, 2> slots_;
  int64_t begun_ = 0, ended_ = 0;  // tiles
  int64_t begun_elements_ = 0;
  SegmentCursor pack_cursor_, unpack_cursor_;
};

// A tile enters a stage only after the older tile has entered it, on every rank. Only their order distinguishes the
// messages of a stage, and those of a short tile may be complete before those of a long one.
bool MpiAllFold::Step(int64_t* budget) {
  for (int64_t tile = ended_; tile < begun_; ++tile) {
    if (tile > ended_ && SlotOf(tile).state >= SlotOf(ended_).state) break;
    if (Advance(&SlotOf(tile), budget)) return true;
    if (Finished()) return true;
  }
  if (begun_ - ended_ < 2 && begun_elements_ < total()) return Begin();
  if (ended_ < begun_) return false;
  Finish(Status::Ok());
  return true;
}

bool MpiAllFold::Advance(Slot* slot, int64_t* budget) {
  switch (slot->state) {
    case State::kPacking:
      if (Pack(slot, budget)) return true;
      slot->state = State::kExchanging;
      Started(StartSlices(slot));
      return true;
    case State::kExchanging:
      if (!Complete(&slot->exchange)) return false;
      slot->state = State::kFolding;
      return true;
    case State::kFolding:
      if (FoldSome(&slot->exchange, SliceOf(*slot, rank()), ResultOf(*slot, rank()), budget)) return true;
      slot->state = State::kGathering;
      Started(Gather(slot));
      return true;
    case State::kGathering:
      if (!Complete(&slot->exchange)) return false;
      slot->state = State::kUnpacking;
      slot->at = 0;
      return true;
    case State::kUnpacking:
      if (takes_ && Unpack(slot, budget)) return true;
      slot->state = State::kIdle;
      ++ended_;
      return true;
    case State::kIdle:
      break;
  }
  return false;
}

bool MpiAllFold::Begin() {
  Slot& slot = SlotOf(begun_);
  slot.state = State::kPacking;
  slot.begin = begun_elements_;
  slot.count = std::min(tile_elements_, total() - begun_elements_);
  const int64_t line = kCacheLine / element_bytes_;
  slot.share = ((slot.count + size() - 1) / size() + line - 1) / line * line;
  slot.at = 0;
  if (direct_) {
    slot.input = collective_.segments[0].input + slot.begin * element_bytes_;
  } else if (!joined(rank())) {
    FusionBuffer& buffer = queue_.buffers[begun_ % 2];
    if (!Started(buffer.Reserve(slot.count * element_bytes_))) return true;
    slot.packed = buffer.data();
    slot.input = slot.packed;
  }
  ++begun_;
  begun_elements_ += slot.count;
  return true;
}

bool MpiAllFold::Pack(Slot* slot, int64_t* budget) {
  if (direct_ || joined(rank()) || slot->at == slot->count) return false;
  pack_cursor_.Seek(slot->begin + slot->at);
  const int64_t run = pack_cursor_.Run(std::min(slot->count - slot->at, PieceElements(*budget)));
  Copied(slot->packed + slot->at * element_bytes_, pack_cursor_.input(), run * element_bytes_, around_, budget);
  slot->at += run;
  return true;
}

bool MpiAllFold::Unpack(Slot* slot, int64_t* budget) {
  if (slot->at == slot->count) return false;
  const int owner = slot->OwnerOf(slot->at);
  const int64_t first = slot->First(owner), rest = slot->First(owner + 1) - slot->at;
  unpack_cursor_.Seek(slot->begin + slot->at);
  const int64_t run = unpack_cursor_.Run(std::min(rest, PieceElements(*budget)));
  const std::byte* const from = ResultOf(*slot, owner) + (slot->at - first) * element_bytes_;
  std::byte* const to = unpack_cursor_.output();
  if (to != nullptr && to != from) Copied(to, from, run * element_bytes_, around_, budget);
  slot->at += run;
  return true;
}

Status MpiAllFold::StartSlices(Slot* slot) {
  FusionBuffer* const memory = &queue_.received[slot - slots_.data()];
  return Start(&slot->exchange, memory, slot->share, [&](int owner) { return SliceOf(*slot, owner); });
}

// Where the result of `owner`'s slice is stored first: in the caller's output, or in the receive buffer, in the room
// for messages from `owner`.
std::byte* MpiAllFold::ResultOf(const Slot& slot, int owner) const {
  std::byte* const output = direct_ && takes_ ? collective_.segments[0].output : nullptr;
  if (output == nullptr || (around_ && owner != rank())) return From(slot.exchange, owner);
  return output + (slot.begin + slot.First(owner)) * element_bytes_;
}

Status MpiAllFold::Gather(Slot* slot) {
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank() + i) % size();
    if (!reduces_to_root_ || collective_.root == rank()) {
      HC_RETURN_IF_ERROR(Receive(&slot->exchange, ResultOf(*slot, peer), slot->Count(peer), peer, kGatherTag));
    }
    if (!reduces_to_root_ || collective_.root == peer) {
      HC_RETURN_IF_ERROR(Send(&slot->exchange, ResultOf(*slot, rank()), slot->Count(rank()), peer, kGatherTag));
    }
  }
  return Status::Ok();
}

}  // namespace

std::unique_ptr<MpiTask> MakeMpiAllFold(MpiQueue* queue, Collective collective) {
  return std::unique_ptr<MpiAllFold>(new (queue) MpiAllFold(queue, std::move(collective)));
}

}  // namespace horocache::data
