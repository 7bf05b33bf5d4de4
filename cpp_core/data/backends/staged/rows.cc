// Operations on rows (allgather, alltoall, reducescatter, gather, scatter), and barrier; see Note [Staging] in task.h.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "data/backends/staged/task.h"

namespace horocache::data {
namespace {

class StagedRows : public StagedTask {
 public:
  StagedRows(StagedQueue* queue, Collective collective, int rank, int size)
      : StagedTask(queue, std::move(collective), rank, size),
        tile_(std::max<int64_t>(1, queue->tile_bytes() / element_bytes_)) {}

 private:
  bool Work(int64_t* budget) override {
    if (staging_ != nullptr && copied_ < total_) {
      if (in_at_ == 0) {
        if (const Status room = queue_.rows.Reserve(total_ * element_bytes_); !room.ok()) return Break(room);
      }
      const bool queued = QueueIn(budget);
      return !Finished() && (CopyFromSlot(budget) || queued);
    }
    if (part_ == nullptr) StartOnHost();
    *budget = 0;  // the host's task has a budget of its own
    if (!part_->Test()) return part_->progressed();
    Finish(part_->status());
    return true;
  }

  Staging::Slot* SlotOf(int64_t element) const {
    return &staging_->slots[static_cast<size_t>(element / tile_ % Staging::kSlots)];
  }
  int64_t EndOf(int64_t element) const { return std::min(total_, (element / tile_ + 1) * tile_); }

  // Queues copies from the device into the next free slot.
  bool QueueIn(int64_t* budget) {
    if (in_at_ == total_ || in_at_ / tile_ >= copied_ / tile_ + Staging::kSlots) return false;
    const int64_t begin = in_at_ / tile_ * tile_;
    return CopyIn(SlotOf(in_at_), begin, EndOf(in_at_), &in_at_, budget);
  }

  bool CopyFromSlot(int64_t* budget) {
    const int64_t begin = copied_ / tile_ * tile_;
    const int64_t end = EndOf(copied_);
    if (in_at_ < end || !Happened(SlotOf(copied_)->arrived)) return false;
    const int64_t count = std::min(end - copied_, std::max<int64_t>(1, *budget / element_bytes_));
    Copied(queue_.rows.data() + copied_ * element_bytes_,
           SlotOf(copied_)->memory->data() + (copied_ - begin) * element_bytes_, count * element_bytes_, false, budget);
    copied_ += count;
    return true;
  }

  void StartOnHost() {
    Collective part = PartForHost();
    const std::byte* const input = staging_ != nullptr ? queue_.rows.data() : nullptr;
    for (const Segment& segment : collective_.segments) part.segments.push_back({input, nullptr, segment.count});
    Start(std::move(part));
  }

  const int64_t tile_;  // elements
  int64_t in_at_ = 0;   // elements that have been queued
  int64_t copied_ = 0;  // elements in queue_.rows
};

}  // namespace

std::unique_ptr<CollectiveTask> MakeStagedRows(StagedQueue* queue, Collective collective, int rank, int size) {
  return std::unique_ptr<CollectiveTask>(new (queue) StagedRows(queue, std::move(collective), rank, size));
}

}  // namespace horocache::data
