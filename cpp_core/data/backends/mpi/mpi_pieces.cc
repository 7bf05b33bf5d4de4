// allreduce, reduce and broadcast by MPI's own collectives.
//
// One tensor without scaling is one call on the caller's memory. Several tensors go through buffers, and what has to be
// scaled is scaled, piece by piece: while one piece is under way the next is packed and the one before unpacked.
//
// An allreduce is always in place: MPI wants that of all ranks or of none, and a rank does not know whether the others
// have a result of their own. So an input that is elsewhere is copied into the result first.

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "data/backends/mpi/mpi_operation.h"
#include "data/backends/segment_cursor.h"
#include "data/kernels/identity.h"

namespace horocache::data {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;

class MpiPieces : public MpiOperation {
 public:
  MpiPieces(MpiQueue* queue, Collective collective) : MpiOperation(queue, std::move(collective)) {
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
    // Equal on all ranks: they cut alike.
    const bool whole = collective_.segments.size() == 1 && collective_.joined.empty() && scaling_.none();
    piece_ = std::min(queue->max_count, whole ? queue->max_count : std::max<int64_t>(1, kPieceBytes / element_bytes_));
    const auto width = static_cast<size_t>(element_bytes_);
    pack_cursor_ = unpack_cursor_ = SegmentCursor(&collective_.segments, width);
  }

 private:
  // A piece, from being packed to being unpacked. Pieces take the two slots in turns.
  struct Slot {
    int64_t first = 0, count = 0;
    bool arrived = false;
    int64_t at = 0;               // how far it is packed, or unpacked
    std::byte* buffer = nullptr;  // where the piece is while MPI has it; null: in the caller's input and output
    net::MpiRequest request;
  };

  bool is_root() const { return collective_.root == rank(); }

  // Of several pieces the first is packed and the last is unpacked while MPI has others.
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
  bool gives_ = false;   // this rank's data takes part
  bool takes_ = false;   // this rank gets the result
  bool direct_ = false;  // MPI works on the caller's memory
  int64_t piece_ = 0;    // elements
  Scaling before_, after_;
  net::MpiOp op_;
  std::array<Slot, 2> slots_;
  int64_t begun_ = 0, started_ = 0, ended_ = 0;  // pieces
  int64_t begun_elements_ = 0;
  int64_t copied_ = 0;  // at the root of a broadcast into other memory
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

// Takes the next piece, if there is one.
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
    FillIdentity(collective_.dtype, collective_.reduce_op, slot->buffer, slot->count);
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
    // In place at the root alone; elsewhere the input is only read.
    const void* const from = is_root() && in == out ? mpi().in_place() : in;
    return mpi().Ireduce(from, is_root() ? out : nullptr, count, type(), op_, collective_.root, comm(), &slot->request);
  }
  // MPI reads the root's memory and writes that of the others.
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

// The root's own result, where that is other memory than its input.
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

std::unique_ptr<MpiOperation> MakeMpiPieces(MpiQueue* queue, Collective collective) {
  return std::unique_ptr<MpiPieces>(new (queue) MpiPieces(queue, std::move(collective)));
}

}  // namespace horocache::data
