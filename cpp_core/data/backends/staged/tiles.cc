// Operations that fuse (allreduce, broadcast, reduce), tile by tile; see Note [Staging] in task.h.
//
// A tile t goes through slot t % kSlots. Four numbers say how far the operation is; each is at most the one before it:
// `in_` tiles have been queued from the device, `folded_` have been through the host's backend, `out_` have been queued
// to the device, and `left_` have arrived there.
#include <algorithm>
#include <memory>
#include <utility>

#include "data/backends/staged/task.h"

namespace horocache::data {
namespace {

class StagedTiles : public StagedTask {
 public:
  StagedTiles(StagedQueue* queue, Collective collective, int rank, int size)
      : StagedTask(queue, std::move(collective), rank, size),
        tile_(std::max<int64_t>(1, queue->tile_bytes() / element_bytes_)),
        // Without elements there is one part, too, because all ranks must take part in it.
        tiles_(std::max<int64_t>(1, (total_ + tile_ - 1) / tile_)),
        is_root_(collective_.root == rank),
        reads_(collective_.op != wire::Op::kBroadcast || is_root_) {}

 private:
  bool Work(int64_t* budget) override {
    bool moved = Leave();
    // Before the fold, which takes the rest of the budget: the device copies both ways meanwhile.
    moved |= !Finished() && QueueOut(budget);
    moved |= !Finished() && QueueIn(budget);
    moved |= !Finished() && Fold(budget);
    copying_ = staging_ != nullptr && left_ < out_;
    return moved;
  }

  int64_t Begin(int64_t tile) const { return tile * tile_; }
  int64_t End(int64_t tile) const { return std::min(total_, Begin(tile) + tile_); }
  Staging::Slot* SlotOf(int64_t tile) const { return &staging_->slots[static_cast<size_t>(tile % Staging::kSlots)]; }

  // Queues copies from the device into the next free slot.
  bool QueueIn(int64_t* budget) {
    if (failed() || in_ == tiles_ || in_ == left_ + Staging::kSlots) return false;
    if (staging_ != nullptr && reads_) {
      const bool moved = CopyIn(SlotOf(in_), Begin(in_), End(in_), &in_at_, budget);
      if (Finished() || in_at_ < End(in_)) return moved;
    }
    ++in_;
    return true;
  }

  // Runs the host's collective on the next tile.
  bool Fold(int64_t* budget) {
    if (part_ == nullptr) {
      if (failed() || folded_ == in_) return false;
      if (staging_ != nullptr && reads_ && !Happened(SlotOf(folded_)->arrived)) return false;
      StartTile();
    }
    *budget = 0;  // the host's task has a budget of its own
    if (!part_->Test()) return part_->progressed();
    error_ = part_->status();
    part_.reset();
    ++folded_;
    return true;
  }

  void StartTile() {
    Collective part = PartForHost();
    std::byte* const memory = staging_ != nullptr ? SlotOf(folded_)->memory->data() : nullptr;
    const bool receives = collective_.op != wire::Op::kReduce || is_root_;
    part.segments.push_back({memory, receives ? memory : nullptr, End(folded_) - Begin(folded_)});
    Start(std::move(part));
  }

  // Queues copies of the next result to the device.
  bool QueueOut(int64_t* budget) {
    if (failed() || out_ == folded_) return false;
    if (staging_ != nullptr) {
      const bool moved_only = collective_.op == wire::Op::kBroadcast && is_root_;
      const bool moved = CopyOut(SlotOf(out_), Begin(out_), End(out_), &out_at_, moved_only, budget);
      if (Finished() || out_at_ < End(out_)) return moved;
    }
    ++out_;
    return true;
  }

  bool Leave() {
    if (left_ < out_ && (staging_ == nullptr || Happened(SlotOf(left_)->left))) {
      ++left_;
      if (left_ == tiles_) Finish(Status::Ok());
      return true;
    }
    if (!failed() || left_ < out_) return false;
    // The part failed on all ranks alike, so that all leave the other tiles out. Tiles may still arrive.
    if (staging_ != nullptr) queue_.Quiesce(staging_);
    Finish(error_);
    return true;
  }

  bool failed() const { return !error_.ok(); }

  const int64_t tile_;  // elements
  const int64_t tiles_;
  const bool is_root_;
  const bool reads_;  // this rank's tensors have values that the operation uses
  int64_t in_ = 0, folded_ = 0, out_ = 0, left_ = 0;
  int64_t in_at_ = 0, out_at_ = 0;  // elements that have been queued
  Status error_;                    // of a part
};

}  // namespace

std::unique_ptr<CollectiveTask> MakeStagedTiles(StagedQueue* queue, Collective collective, int rank, int size) {
  return std::unique_ptr<CollectiveTask>(new (queue) StagedTiles(queue, std::move(collective), rank, size));
}

}  // namespace horocache::data
