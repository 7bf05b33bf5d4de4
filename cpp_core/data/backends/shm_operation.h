// One operation of the shm backend, and what the operations of a lane share.
//
// Role: lanes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/backend.h"
#include "data/backends/queued_operation.h"
#include "data/backends/region_places.h"
#include "data/backends/shm_algorithms.h"
#include "data/backends/shm_port.h"
#include "data/kernels/fold.h"

namespace horocache::data {

struct ShmQueue final : OperationQueue {
  ShmQueue(const SharedArea& area, const BackendOptions& options, const KernelSet* kernel_set)
      : port(area, options.tile_bytes),
        oneshot_max_bytes(options.oneshot_max_bytes < 0 ? OneshotMaxBytes(area.size) : options.oneshot_max_bytes),
        kernels(kernel_set) {}

  ShmPort port;
  const int64_t oneshot_max_bytes;
  const KernelSet* const kernels;
  RegionPlaces places;  // of the operation that runs
  // Near memory for a piece of many small tensors.
  static constexpr int64_t kScratchBytes = 8 << 10;
  alignas(kCacheLine) std::array<std::byte, kScratchBytes> scratch;

 private:
  friend class ShmOperation;
  void OnDriven() override { port.Ring(); }
};

// A state machine that goes through the tiles of one operation. Subclasses do the work of the stages; see
// Note [The first tile carries the operation] in shm_port.h for what is common.
class ShmOperation : public QueuedOperation {
 public:
  void AddWaitingFor(std::vector<int>* ranks) const final;

 protected:
  // How far one stage has come: tile `tile` of the operation (counted from 0), and `at` within it.
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

  ShmOperation(ShmQueue* queue, Collective collective);

  // One step of the stages; see Step of the base.
  virtual bool StepTiles(int64_t* budget) = 0;
  // All tiles are consumed.
  virtual bool Complete() const = 0;

  // The caller's mistake: every rank then fails with this.
  void Refuse(Status why) { refused_ = std::move(why); }
  bool refused() const { return !refused_.ok(); }
  // Memory for this rank's result of `bytes`; null if it has joined or there is none, the operation then ends with the
  // error: on this rank alone or, if some rank's result has `largest` bytes and that is much, on all (see
  // AllAllocated).
  std::byte* AllocateResult(int64_t bytes, int64_t largest);
  // After AllocateResult, before a second tile: true if all ranks have memory, or nobody asked. Ends the operation on
  // all ranks if one has none; false while that is not known.
  bool AllAllocated();

  // Fills and publishes the first tile's header; the payload is in place.
  void PublishFirst();
  // The same without a payload, which PublishPacked tells of if it is needed.
  void AnnounceFirst();
  // True if the headers of all ranks' first tiles are there. Ends the operation (see ended()) if they do not agree.
  bool HeadersArrived();
  bool ended() const { return ended_; }
  // Every rank does so, having seen the same.
  void EndAfterFirstTile(Status why);

  // Remembers what this stage waits for, for stall reports; returns false. The first one in a step counts.
  bool Block(Wait wait, uint64_t tile);
  // True if all other ranks have packed the operation's tile.
  bool AllPacked(uint64_t tile);
  // True if all other ranks' parts of the result are in the operation's tile.
  bool AllReduced(uint64_t tile);

  uint64_t Number(uint64_t tile) const { return first_ + tile; }
  // As Copied and Folded of the base; what is long waits until the others have been woken.
  void Move(std::byte* to, const std::byte* from, int64_t bytes, bool stream, int64_t* budget);
  void FoldNow(const FoldCall& call, int64_t* budget);
  // True if an output of this size is worth writing around the caches where it is not the input as well.
  static bool Large(int64_t bytes);

  ShmQueue& queue_;
  ShmPort& port_;
  int64_t header_count_ = 0;  // of TileHeader
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
  bool agreed_ = false;
  bool confirms_ = false;  // whether all ranks have memory for their results
  bool ended_ = false;
  Wait wait_ = Wait::kNone;
  uint64_t wait_tile_ = 0;
  Status refused_;
};

// allreduce, reduce
std::unique_ptr<ShmOperation> MakeShmFold(ShmQueue* queue, Collective collective);
// reducescatter
std::unique_ptr<ShmOperation> MakeShmReducescatter(ShmQueue* queue, Collective collective);
// allgather, broadcast, alltoall, gather, scatter, barrier
std::unique_ptr<ShmOperation> MakeShmMove(ShmQueue* queue, Collective collective);

}  // namespace horocache::data
