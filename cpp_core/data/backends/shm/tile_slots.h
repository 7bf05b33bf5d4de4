// One rank's view of the shared area of a lane: tile slots with sequence numbers, which their owner writes and all
// ranks read.
//
// Note [Tiles and their numbers]
// Every operation is a sequence of tiles. Tile numbers count through all operations of the lane and never restart, and
// they are equal on all ranks. Tile t lies in slot t modulo kDepth of each rank. The words of a slot say how far its
// owner has come with tile t: `packed` is 2 t + 1 once the header is written and 2 t + 2 once the payload is, too;
// `reduced` is t + 1 once the owner's part of the result is in the slot. `consumed` is the number of tiles that a rank
// no longer needs from any rank. A rank fills a slot again when all ranks have consumed the tile in it. So the protocol
// needs no locks, resets or barriers: each word has one writer and only grows.
// Example: tile 9 lies in slot 1. The owner stores `packed` = 20 (preceded by 19 if it publishes the header early), and
// then `reduced` = 10. It fills the slot with tile 13 once `consumed` is at least 10 on every rank.
// A rank finishes a one-shot operation as soon as it has folded the other ranks' tiles, before the others have consumed
// its own tile. Slots are four deep, so it waits only for ranks that are four tiles behind.
//
// Note [Header of the first tile]
// The header of an operation's first tile describes the operation that its sender runs. No rank goes beyond that tile
// before it has compared all ranks' headers with its own. If headers differ, every rank sees a difference, so all ranks
// end the operation with kMismatch after exactly one tile and stay in step.
//
// Threads: the driving thread. Ownership: none of the memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/memory.h"
#include "base/status.h"
#include "data/backend.h"

namespace horocache::data {

// The properties of an operation that must be equal on all ranks; compared word by word.
struct TileHeader {
  uint64_t kind = 0;    // op, reduce op, dtype, algorithm, root and sequence: see EncodeKind in shm/task.cc
  int64_t count = 0;    // elements, or elements in a row if the number of rows may differ; -1: arguments are wrong
  uint64_t detail = 0;  // a hash of the other properties
  bool operator==(const TileHeader&) const = default;
};

// A contiguous part of a rank's tensors in its region: offsets of the input and the output, and the length, in bytes.
struct RegionRun {
  int64_t input = 0, output = 0, bytes = 0;
};

class ShmPort {
 public:
  static constexpr int kDepth = 4;
  static constexpr int64_t kHeaderDataBytes = 32;

  // kInvalidArgument, naming the knob, if the area is too small for its ranks.
  static Status Check(const SharedArea& area);
  ShmPort(const SharedArea& area, int64_t tile_bytes);

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Payload bytes of a tile; a multiple of 64 times the number of ranks.
  int64_t tile_bytes() const { return tile_bytes_; }

  // The number of the current operation's first tile. FinishTiles ends the operation, which had `count` tiles.
  uint64_t first_tile() const { return first_tile_; }
  void FinishTiles(uint64_t count) { first_tile_ += count; }

  // True if this rank may fill its slot for `tile`.
  bool SlotFree(uint64_t tile);

  bool Announced(int rank, uint64_t tile) const {
    return Slot(rank, tile)->packed.load(std::memory_order_acquire) > 2 * tile;
  }
  bool Packed(int rank, uint64_t tile) const {
    return Slot(rank, tile)->packed.load(std::memory_order_acquire) > 2 * tile + 1;
  }
  bool Reduced(int rank, uint64_t tile) const {
    return Slot(rank, tile)->reduced.load(std::memory_order_acquire) > tile;
  }
  bool Consumed(int rank, uint64_t tile) const { return consumed_[rank]->load(std::memory_order_acquire) > tile; }

  void PublishAnnounced(uint64_t tile);
  void PublishPacked(uint64_t tile);
  void PublishReduced(uint64_t tile);
  void PublishConsumed(uint64_t tile);

  // Wakes the other ranks if this rank has published anything since the last call.
  void Ring();

  TileHeader& header(int rank, uint64_t tile) { return Slot(rank, tile)->header; }
  // Rows that a rank sends: one number, or one for each rank. Uses the memory of the inline payload if all of them fit
  // there.
  int64_t* exchange(int rank, uint64_t tile) { return reinterpret_cast<int64_t*>(Base(rank, tile) + exchange_offset_); }
  // Rows that a rank expects, and their starts in its result: two numbers for each rank.
  int64_t* expectations(int rank, uint64_t tile) {
    return reinterpret_cast<int64_t*>(Base(rank, tile) + expectations_offset_);
  }
  std::byte* payload(int rank, uint64_t tile) { return Base(rank, tile) + payload_offset_; }
  // Size in bytes of the result that a rank could not allocate; 0 if it has the memory. PublishReduced publishes it, in
  // operations that do not use `reduced` for a result.
  int64_t& unallocated(int rank, uint64_t tile) { return Slot(rank, tile)->unallocated; }
  // kHeaderDataBytes in the cache line of the header, which arrive together with it.
  std::byte* header_data(int rank, uint64_t tile) { return Slot(rank, tile)->header_data; }
  // Where the sender's tensors lie in its region: the number of runs, and the first run; the payload has the others.
  // Uses the memory of header_data. A count of 0 means that not all of its tensors are in its region.
  struct Runs {
    int64_t count;
    RegionRun first;
  };
  static_assert(sizeof(Runs) <= kHeaderDataBytes);
  Runs& runs(int rank, uint64_t tile) { return *reinterpret_cast<Runs*>(header_data(rank, tile)); }
  std::span<std::byte> region(int rank) const {
    return regions_.empty() ? std::span<std::byte>() : regions_[static_cast<size_t>(rank)];
  }

 private:
  struct alignas(kCacheLine) SlotWords {
    std::atomic<uint64_t> packed;
    TileHeader header;
    std::byte header_data[kHeaderDataBytes];
    alignas(kCacheLine) std::atomic<uint64_t> reduced;
    int64_t unallocated;
  };
  static_assert(sizeof(SlotWords) == 128);

  std::byte* Base(int rank, uint64_t tile) const { return slots_[rank] + (tile % kDepth) * slot_bytes_; }
  SlotWords* Slot(int rank, uint64_t tile) const { return reinterpret_cast<SlotWords*>(Base(rank, tile)); }

  static int64_t RowsBytes(int ranks);
  static int64_t FixedBytes(int ranks);

  const int rank_;
  const int size_;
  const std::function<void(int)> ring_;
  int64_t tile_bytes_ = 0;
  size_t exchange_offset_ = 0;
  size_t expectations_offset_ = 0;
  size_t payload_offset_ = 0;
  size_t slot_bytes_ = 0;
  std::vector<std::byte*> slots_;
  std::vector<std::atomic<uint64_t>*> consumed_;
  const std::vector<std::span<std::byte>> regions_;
  uint64_t first_tile_ = 0;
  uint64_t consumed_by_all_ = 0;  // the least `consumed` of all ranks, when last read
  bool published_ = false;        // since the last Ring
};

}  // namespace horocache::data
