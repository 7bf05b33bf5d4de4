// The base class of the shm backend's operations, and the queue that the operations of a lane share.
//
// Threads: the driving thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/backend.h"
#include "data/backends/queued_task.h"
#include "data/backends/shm/algorithms.h"
#include "data/backends/shm/direct_buffers.h"
#include "data/backends/shm/tile_slots.h"
#include "data/kernels/fold.h"

namespace horocache::data {

struct ShmQueue final : TaskQueue {
  ShmQueue(const SharedArea& area, const BackendOptions& options, const KernelSet* kernel_set)
      : port(area, options.tile_bytes),
        oneshot_max_bytes(options.oneshot_max_bytes < 0 ? OneshotMaxBytes(area.size) : options.oneshot_max_bytes),
        kernels(kernel_set) {}

  ShmPort port;
  const int64_t oneshot_max_bytes;
  const KernelSet* const kernels;
  DirectBuffers places;  // of the running operation
  // A buffer that stays in the near caches, for a piece of many small tensors.
  static constexpr int64_t kScratchBytes = 8 << 10;
  alignas(kCacheLine) std::array<std::byte, kScratchBytes> scratch;

 private:
  friend class ShmTask;
  void OnDriven() override { port.Ring(); }
};

// A state machine that goes through the tiles of one operation. Subclasses do the work of the stages; this class
// handles the first tile, see Note [Header of the first tile] in tile_slots.h.
class ShmTask : public QueuedTask {
 public:
  void AddWaitingFor(std::vector<int>* ranks) const final;

 protected:
  // The position of one stage: tile `tile` of the operation (counted from 0), and `at` within it. `open`: true once
  // work on the tile has begun.
  struct Stage {
    uint64_t tile = 0;
    int64_t at = 0;
    bool open = false;
    void Next() {
      ++tile;
      open = false;
    }
  };
  enum class Wait { kNone, kAnnounced, kPacked, kReduced, kConsumed };

  ShmTask(ShmQueue* queue, Collective collective);

  // Advances the stages; as QueuedTask::Step.
  virtual bool StepTiles(int64_t* budget) = 0;
  // True if all tiles are consumed.
  virtual bool Complete() const = 0;

  // Records that this rank's arguments are wrong. Called before the first tile; the operation then fails on every rank.
  void Refuse(Status why) { refused_ = std::move(why); }
  bool refused() const { return !refused_.ok(); }
  // Returns memory for this rank's result of `bytes`; null if the rank has joined or the allocation failed. `largest`
  // bounds the results of all ranks and is equal on them. If it is at least kConfirmedBytes, AllAllocated ends the
  // operation on all ranks after a failed allocation; otherwise the operation fails on this rank only, at its end.
  std::byte* AllocateResult(int64_t bytes, int64_t largest);
  // Called after AllocateResult and before the second tile; false while it waits for other ranks. True if all ranks
  // have their memory, or need no confirmation, or if a rank has no memory: then the operation has ended, on all ranks.
  bool AllAllocated();

  // Writes the first tile's header and publishes the tile. The payload must be in place.
  void PublishFirst();
  // Publishes the first tile's header without a payload; PublishPacked may publish a payload later.
  void AnnounceFirst();
  // True if the headers of all ranks' first tiles have arrived. Ends the operation (see ended()) if they differ.
  bool HeadersArrived();
  bool ended() const { return ended_; }
  // Ends the operation with `why`. All ranks must decide to do so, from the same contents of the first tiles.
  void EndAfterFirstTile(Status why);

  // Records what the operation waits for, for stall reports; returns false. Only the first call in a step counts.
  bool Block(Wait wait, uint64_t tile);
  // True if all other ranks have packed the operation's tile.
  bool AllPacked(uint64_t tile);
  // True if all other ranks have stored their parts of the result for the operation's tile.
  bool AllReduced(uint64_t tile);

  // The number of the operation's tile in the lane.
  uint64_t Number(uint64_t tile) const { return first_ + tile; }
  // As Copied and Folded of the base class, but wake the other ranks before a long piece.
  void Move(std::byte* to, const std::byte* from, int64_t bytes, bool stream, int64_t* budget);
  void FoldNow(const FoldCall& call, int64_t* budget);
  // True if an output of this size should be written around the caches, provided that it is not an input as well.
  static bool Large(int64_t bytes);

  ShmQueue& queue_;
  ShmPort& port_;
  int64_t header_count_ = 0;  // TileHeader::count
  uint64_t tiles_ = 1;

 private:
  bool Step(int64_t* budget) final;
  bool Finished() const final { return ended_ || Complete(); }
  void OnHead() final { first_ = port_.first_tile(); }
  void OnFinished() final { port_.FinishTiles(tiles_); }
  TileHeader MakeHeader() const;
  void WriteReason();
  Status ReasonOf(int rank);
  bool EndRefused();
  bool Reached(int rank) const;
  bool AllOthers(Wait wait, uint64_t tile);
  bool Reached(int rank, Wait wait, uint64_t number) const;

  uint64_t first_ = 0;
  bool agreed_ = false;    // the headers of all ranks are equal
  bool confirms_ = false;  // the ranks are still confirming that all have memory for their results
  bool ended_ = false;
  Wait wait_ = Wait::kNone;
  uint64_t wait_tile_ = 0;
  Status refused_;
};

// allreduce, reduce
std::unique_ptr<ShmTask> MakeShmFold(ShmQueue* queue, Collective collective);
// reducescatter
std::unique_ptr<ShmTask> MakeShmReducescatter(ShmQueue* queue, Collective collective);
// allgather, broadcast, alltoall, gather, scatter, barrier
std::unique_ptr<ShmTask> MakeShmMove(ShmQueue* queue, Collective collective);

}  // namespace horocache::data
