// allreduce, reduce and broadcast by MPI's own collectives.
//
// One tensor without scaling is one call on the caller's memory. Several tensors go through buffers piece by piece, and
// scaling is applied piece by piece: while one piece is under way, the next is packed and the one before unpacked.
//
// An allreduce is always in place: MPI requires this on all ranks or on none, and a rank does not know whether the
// other ranks have separate outputs. So a rank with a separate output first copies its input there.

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "data/backends/mpi/task.h"
#include "data/backends/segment_cursor.h"
#include "data/kernels/neutral_element.h"

namespace horocache::data {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;  // size of a piece

class MpiPieces : public MpiTask {
 public:
  MpiPieces(MpiQueue* queue, Collective collective) : MpiTask(queue, std::move(collective)) {
    const bool broadcast = collective_.op == wire::Op::kBroadcast;
    all_ = collective_.op == wire::Op::kAllreduce;
    reduces_ = !broadcast;
    const bool joined_here = joined(rank());
    gives_ = !joined_here && (!broadcast || is_root());
    takes_ = !joined_here && (all_ || (broadcast ? !is_root() : is_root()));
    if (ScalesFirst(collective_)) {
      before_ = scaling_;
    } else {
      before_ = Scaling{scaling_.before, 1.0, 1};
      after_ = Scaling{1.0, scaling_.after, scaling_.divisor};
    }
    direct_ = collective_.segments.size() == 1 && !joined_here && before_.none();
    // True for one unscaled tensor; equal on all ranks, so that all cut the operation into the same pieces.
    const bool whole = collective_.segments.size() == 1 && collective_.joined.empty() && scaling_.none();
    piece_ = std::min(queue->max_count, whole ? queue->max_count : std::max<int64_t>(1, kPieceBytes / element_bytes_));
    const auto width = static_cast<size_t>(element_bytes_);
    pack_cursor_ = unpack_cursor_ = SegmentCursor(&collective_.segments, width);
  }

 private:
  // The state of one piece, from packing to unpacking. Pieces use the two slots in turn.
  struct Slot {
    int64_t first = 0, count = 0;
    bool arrived = false;
    int64_t at = 0;               // elements packed or unpacked so far
    std::byte* buffer = nullptr;  // memory that MPI uses for the piece; null: the caller's input and output
    net::MpiRequest request;
  };

  bool is_root() const { return collective_.root == rank(); }

  // With several pieces, kPack lasts only until the first is packed and kUnpack begins with the last: between them MPI
  // has a piece under way.
  observe::Phase phase() const override {
    if (direct_) return observe::Phase::kTransfer;
    if (started_ == 0) return observe::Phase::kPack;
    const bool last = begun_elements_ == total() && ended_ + 1 >= begun_;
    return last && slots_[static_cast<size_t>(ended_ % 2)].arrived ? observe::Phase::kUnpack
                                                                   : observe::Phase::kTransfer;
  }

  bool Step(int64_t* budget) override;
  bool Begin();
  bool MustPack(const Slot& slot) const;
  bool Pack(Slot* slot, int64_t* budget);
  bool Start(Slot* slot);
  Status Call(Slot* slot);
  bool Unpack(Slot* slot, int64_t* budget);
  void UnpackRun(Slot* slot, int64_t* budget);
  bool CopyAtRoot(int64_t* budget);
  Slot& SlotOf(int64_t number) { return slots_[static_cast<size_t>(number % 2)]; }

  bool reduces_ = false, all_ = false;
  bool gives_ = false;   // this rank contributes data
  bool takes_ = false;   // this rank gets the result
  bool direct_ = false;  // MPI works on the caller's memory
  int64_t piece_ = 0;    // elements of a piece
  Scaling before_, after_;
  net::MpiOp op_;
  std::array<Slot, 2> slots_;
  int64_t begun_ = 0, started_ = 0, ended_ = 0;  // pieces
  int64_t begun_elements_ = 0;
  int64_t copied_ = 0;  // elements copied from input to output at the root of a broadcast
  SegmentCursor pack_cursor_, unpack_cursor_;
};

bool MpiPieces::Step(int64_t* budget) {
  if (ended_ < started_ && Unpack(&SlotOf(ended_), budget)) return true;
  if (Finished()) return true;
  if (started_ < begun_) return Pack(&SlotOf(started_), budget);
  if (begun_ - ended_ < 2 && Begin()) return true;
  if (CopyAtRoot(budget)) return true;
  if (ended_ < begun_ || begun_elements_ < total()) return false;
  Finish(Status::Ok());
  return true;
}

// Begins the next piece; false if there is none.
bool MpiPieces::Begin() {
  if (begun_elements_ == total() || Finished()) return false;
  if (begun_ == 0 && reduces_) {
    StatusOr<net::MpiOp> op = queue_.folds.Find(collective_.dtype, collective_.reduce_op);
    if (!Started(op.status())) return true;
    op_ = *op;
  }
  Slot& slot = SlotOf(begun_);
  slot = {.first = begun_elements_, .count = std::min(piece_, total() - begun_elements_)};
  if (direct_) {
    if (all_) slot.buffer = collective_.segments[0].output + slot.first * element_bytes_;
  } else {
    FusionBuffer& buffer = queue_.buffers[begun_ % 2];
    if (const Status room = buffer.Reserve(slot.count * element_bytes_); !Started(room)) return true;
    slot.buffer = buffer.data();
  }
  ++begun_;
  begun_elements_ += slot.count;
  return true;
}

bool MpiPieces::MustPack(const Slot& slot) const {
  if (!gives_ || slot.buffer == nullptr) return false;
  return !direct_ || collective_.segments[0].input != collective_.segments[0].output;
}

bool MpiPieces::Pack(Slot* slot, int64_t* budget) {
  if (!gives_ && reduces_) {
    FillNeutralElement(collective_.dtype, collective_.reduce_op, slot->buffer, slot->count);
    *budget -= slot->count * element_bytes_;
  }
  if (!MustPack(*slot)) return Start(slot);
  while (slot->at < slot->count && *budget > 0) {
    pack_cursor_.Seek(slot->first + slot->at);
    const int64_t run = pack_cursor_.Run(std::min(slot->count - slot->at, PieceElements(*budget)));
    std::byte* const to = slot->buffer + slot->at * element_bytes_;
    const std::byte* const from = pack_cursor_.input();
    if (before_.none()) {
      Move(to, from, run * element_bytes_, budget);
    } else {
      Folded({.inputs = &from, .num_inputs = 1, .count = run, .output = to, .scaling = before_}, budget);
    }
    slot->at += run;
  }
  return slot->at < slot->count || Start(slot);
}

bool MpiPieces::Start(Slot* slot) {
  if (!Started(Call(slot))) return true;
  slot->at = 0;
  ++started_;
  return true;
}

Status MpiPieces::Call(Slot* slot) {
  const int count = static_cast<int>(slot->count);
  if (all_) return mpi().Iallreduce(mpi().in_place(), slot->buffer, count, type(), op_, comm(), &slot->request);
  const std::byte* in = slot->buffer;
  std::byte* out = slot->buffer;
  if (direct_) {
    const Segment& segment = collective_.segments[0];
    const int64_t offset = slot->first * element_bytes_;
    in = segment.input + offset;
    out = segment.output == nullptr ? nullptr : segment.output + offset;
  }
  if (reduces_) {
    // Only the root may be in place; the other ranks' inputs are only read.
    const void* const from = is_root() && in == out ? mpi().in_place() : in;
    return mpi().Ireduce(from, is_root() ? out : nullptr, count, type(), op_, collective_.root, comm(), &slot->request);
  }
  // MPI only reads the root's memory, and writes that of the other ranks.
  return mpi().Ibcast(gives_ ? const_cast<std::byte*>(in) : out, count, type(), collective_.root, comm(),
                      &slot->request);
}

bool MpiPieces::Unpack(Slot* slot, int64_t* budget) {
  if (!slot->arrived) {
    if (!RequestDone(&slot->request)) return false;
    if (Finished()) return true;
    slot->arrived = true;
    const bool in_place = direct_ && after_.none();
    if (!takes_ || in_place) slot->at = slot->count;
  }
  while (slot->at < slot->count && *budget > 0) UnpackRun(slot, budget);
  if (slot->at < slot->count) return true;
  ++ended_;
  return true;
}

void MpiPieces::UnpackRun(Slot* slot, int64_t* budget) {
  unpack_cursor_.Seek(slot->first + slot->at);
  const int64_t run = unpack_cursor_.Run(std::min(slot->count - slot->at, PieceElements(*budget)));
  std::byte* const to = unpack_cursor_.output();
  const std::byte* const from = direct_ ? to : slot->buffer + slot->at * element_bytes_;
  slot->at += run;
  if (to == nullptr) return;
  if (after_.none()) {
    Move(to, from, run * element_bytes_, budget);
  } else {
    Folded({.inputs = &from, .num_inputs = 1, .count = run, .output = to, .scaling = after_}, budget);
  }
}

// Copies the root's input of a broadcast to its output, if that is other memory.
bool MpiPieces::CopyAtRoot(int64_t* budget) {
  if (reduces_ || !gives_ || copied_ == total()) return false;
  while (copied_ < total() && *budget > 0) {
    unpack_cursor_.Seek(copied_);
    const int64_t run = unpack_cursor_.Run(std::min(total() - copied_, PieceElements(*budget)));
    const std::byte* const from = unpack_cursor_.input();
    std::byte* const to = unpack_cursor_.output();
    if (to != nullptr && to != from) Move(to, from, run * element_bytes_, budget);
    copied_ += run;
  }
  return true;
}

}  // namespace

std::unique_ptr<MpiTask> MakeMpiPieces(MpiQueue* queue, Collective collective) {
  return std::unique_ptr<MpiPieces>(new (queue) MpiPieces(queue, std::move(collective)));
}

}  // namespace horocache::data
