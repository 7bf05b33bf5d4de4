// allreduce and reduce over MPI with the fold of the shm backend, tile by tile: the ranks send each other the slices of
// their inputs, each folds its own slice in rank order, and the results are sent to all, or to the root. Same bits as
// in shared memory, and every byte travels as often as it must: 2 (n - 1) / n times.
//
// Two tiles are under way at a time, so that one is between the ranks while the other is folded. One tensor is sent
// from where it is and received where it belongs; several go through buffers.

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
constexpr int64_t kTileBytes = 4 << 20;

class MpiAllFold final : public MpiSlices {
 public:
  MpiAllFold(MpiQueue* queue, Collective collective)
      : MpiSlices(queue, std::move(collective)),
        reduces_to_root_(collective_.op == wire::Op::kReduce),
        takes_(!joined(rank()) && (!reduces_to_root_ || collective_.root == rank())),
        direct_(collective_.segments.size() == 1 && !joined(rank())),
        tile_elements_(std::min(kTileBytes / element_bytes_, queue->max_count)) {
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
    const std::byte* input = nullptr;  // the tile in this rank's input
    std::byte* output = nullptr;       // where its results meet
    Exchange exchange;

    int64_t First(int owner) const { return std::min(owner * share, count); }
    int64_t Count(int owner) const { return First(owner + 1) - First(owner); }
  };

  bool Step(int64_t* budget) override;
  bool Advance(Slot* slot, int64_t* budget);
  bool Begin();
  bool Pack(Slot* slot, int64_t* budget);
  Slice SliceOf(const Slot& slot, int owner) const {
    return {slot.input + slot.First(owner) * element_bytes_, slot.Count(owner)};
  }
  bool Unpack(Slot* slot, int64_t* budget);
  Status StartSlices(Slot* slot);
  Status Gather(Slot* slot);
  Slot& SlotOf(int64_t number) { return slots_[static_cast<size_t>(number % 2)]; }

  const bool reduces_to_root_;
  const bool takes_;   // this rank gets the result
  const bool direct_;  // MPI works on the caller's memory
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
      if (FoldSome(&slot->exchange, SliceOf(*slot, rank()), slot->output + slot->First(rank()) * element_bytes_,
                   budget)) {
        return true;
      }
      slot->state = State::kGathering;
      Started(Gather(slot));
      return true;
    case State::kGathering:
      if (!Complete(&slot->exchange)) return false;
      slot->state = State::kUnpacking;
      slot->at = 0;
      return true;
    case State::kUnpacking:
      if (!direct_ && takes_ && Unpack(slot, budget)) return true;
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
  const int64_t offset = slot.begin * element_bytes_;
  std::byte* const result = direct_ ? collective_.segments[0].output : nullptr;
  FusionBuffer& buffer = queue_.buffers[begun_ % 2];
  if (!direct_ || result == nullptr || !takes_) {
    if (!Started(buffer.Reserve(slot.count * element_bytes_))) return true;
    slot.output = buffer.data();
  } else {
    slot.output = result + offset;
  }
  slot.input = direct_ ? collective_.segments[0].input + offset : slot.output;
  ++begun_;
  begun_elements_ += slot.count;
  return true;
}

bool MpiAllFold::Pack(Slot* slot, int64_t* budget) {
  if (direct_ || joined(rank()) || slot->at == slot->count) return false;
  pack_cursor_.Seek(slot->begin + slot->at);
  const int64_t run = pack_cursor_.Run(std::min(slot->count - slot->at, PieceElements(*budget)));
  Move(slot->output + slot->at * element_bytes_, pack_cursor_.input(), run * element_bytes_, budget);
  slot->at += run;
  return true;
}

bool MpiAllFold::Unpack(Slot* slot, int64_t* budget) {
  if (slot->at == slot->count) return false;
  unpack_cursor_.Seek(slot->begin + slot->at);
  const int64_t run = unpack_cursor_.Run(std::min(slot->count - slot->at, PieceElements(*budget)));
  if (std::byte* const to = unpack_cursor_.output(); to != nullptr) {
    Move(to, slot->output + slot->at * element_bytes_, run * element_bytes_, budget);
  }
  slot->at += run;
  return true;
}

Status MpiAllFold::StartSlices(Slot* slot) {
  FusionBuffer* const memory = &queue_.received[slot - slots_.data()];
  return Start(&slot->exchange, memory, slot->share, [&](int owner) { return SliceOf(*slot, owner); });
}

Status MpiAllFold::Gather(Slot* slot) {
  const auto at = [&](int owner) { return slot->output + slot->First(owner) * element_bytes_; };
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank() + i) % size();
    if (!reduces_to_root_ || collective_.root == rank()) {
      HC_RETURN_IF_ERROR(Receive(&slot->exchange, at(peer), slot->Count(peer), peer, kGatherTag));
    }
    if (!reduces_to_root_ || collective_.root == peer) {
      HC_RETURN_IF_ERROR(Send(&slot->exchange, at(rank()), slot->Count(rank()), peer, kGatherTag));
    }
  }
  return Status::Ok();
}

}  // namespace

std::unique_ptr<MpiOperation> MakeMpiAllFold(MpiQueue* queue, Collective collective) {
  return std::make_unique<MpiAllFold>(queue, std::move(collective));
}

}  // namespace horocache::data
