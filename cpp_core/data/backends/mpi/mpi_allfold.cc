// allreduce and reduce over MPI with the fold of the shm backend, tile by tile: the ranks send each other the slices of
// their inputs, each folds its own slice in rank order, and the results are sent to all, or to the root. Same bits as
// in shared memory, and every byte travels as often as it must: 2 (n - 1) / n times.
//
// Two tiles are under way at a time, so that one is between the ranks while the other is folded. One tensor is sent
// from where it is; several are packed first.
//
// Note [Results around the caches]
// A rank sends its input and gets the results for the same places. On one host the library copies straight from one
// process to the other, so the receiver's processor has just read those lines, and a plain store to them has to take
// them away from it: where the processors share no cache, an allreduce of 16 MiB received in place took 6.0 instead of
// 3.3 ms. So large results are received into buffers that nobody else reads, and go on from there by streaming stores;
// see Note [Writing around the caches] in data/kernels/copy.h. For the same reason what is packed is streamed. Where
// the processors share a cache, that is up to 1.5 times as slow, and still as fast as the library's own allreduce but
// for what fits into the cache; there the in-place way holds its own even where nothing is shared.

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "data/backends/mpi/mpi_slices.h"
#include "data/backends/segment_cursor.h"

namespace horocache::data {
namespace {

constexpr int kGatherTag = 4;
// Small ones stay in the caches; what is hardly more than one does not gain by being cut.
constexpr int64_t kTileBytesOnOneHost = 1 << 20, kUncutBytesOnOneHost = 2 << 20;
// See Note [Results around the caches].
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
  // A tile, from being packed to being unpacked. Tiles take the two slots in turns.
  struct Slot {
    State state = State::kIdle;
    int64_t begin = 0, count = 0;      // elements
    int64_t share = 0;                 // of a slice, in whole cache lines
    int64_t at = 0;                    // how far it is packed or unpacked
    const std::byte* input = nullptr;  // the tile in this rank's input; null on a joined rank
    std::byte* packed = nullptr;       // the same in a buffer, of several tensors
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
  const bool direct_;  // MPI sends the caller's memory
  const bool around_;  // around the caches
  const int64_t tile_elements_;
  std::array<Slot, 2> slots_;
  int64_t begun_ = 0, ended_ = 0;  // tiles
  int64_t begun_elements_ = 0;
  SegmentCursor pack_cursor_, unpack_cursor_;
};

// A tile enters a stage after the older one has left it or is in it, on every rank: messages of a stage are told apart
// by their order alone, and a short tile's may be complete before a long one's.
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

// Where the result of a slice comes to lie first: where it belongs, or where the slice's input was received.
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

std::unique_ptr<MpiOperation> MakeMpiAllFold(MpiQueue* queue, Collective collective) {
  return std::unique_ptr<MpiAllFold>(new (queue) MpiAllFold(queue, std::move(collective)));
}

}  // namespace horocache::data
