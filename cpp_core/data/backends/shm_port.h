// One rank's view of the shared area of a lane: tile slots with sequence numbers, written by their owner, read by all.
//
// Note [Tiles and their numbers]
// Every operation is a run of tiles; tiles are numbered through all operations of the lane and never start again, and
// all ranks count alike. Tile t lives in slot t modulo kDepth of each rank. A slot tells by a number that it holds tile
// t: `packed` is 2 t + 1 once its header is there and 2 t + 2 once its owner has filled it, `reduced` is t + 1 once the
// owner's part of the result is in it too. `consumed` counts the tiles that a rank needs no more from anybody; a slot
// is filled again when all ranks have consumed what it held. So there are no locks, no resets and no barrier: every
// word has one writer and only grows.
// A small operation ends for a rank as soon as it has folded what the others packed: slots are four deep, so nobody
// waits until that is consumed, but for who is four tiles behind.
//
// Note [The first tile carries the operation]
// The header of an operation's first tile says what its sender runs. Nobody goes beyond that tile before having
// compared all ranks' headers with its own. If they differ, they differ for every rank, so all ranks end the operation
// with kMismatch after exactly one tile and stay in step.
//
// Role: lanes. Ownership: none of the memory.
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

// What all ranks must agree on; compared word by word.
struct TileHeader {
  uint64_t kind = 0;    // op, reduce op, dtype, algorithm, root and sequence, see DescribeKind
  int64_t count = 0;    // elements, or elements in a row where the number of rows differs
  uint64_t detail = 0;  // a hash of the rest
  bool operator==(const TileHeader&) const = default;
};

// Where a part of a rank's tensors lies in its region, in bytes.
struct RegionRun {
  int64_t input = 0, output = 0, bytes = 0;
};

class ShmPort {
 public:
  static constexpr int kDepth = 4;
  static constexpr int64_t kInlineBytes = 32;

  // kInvalidArgument, naming the knob, if the area is too small for its ranks.
  static Status Check(const SharedArea& area);
  ShmPort(const SharedArea& area, int64_t tile_bytes);

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Bytes that a tile holds; a multiple of 64 times the number of ranks.
  int64_t tile_bytes() const { return tile_bytes_; }

  // Number of the next operation's first tile, and the end of an operation of `count` tiles.
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

  // Wakes the ranks that may wait for what was published since the last call.
  void Ring();

  TileHeader& header(int rank, uint64_t tile) { return Slot(rank, tile)->header; }
  // Rows that a rank sends, one or one for each rank; room for as many as there are ranks. Shares the memory of the
  // inline payload where it fits.
  int64_t* exchange(int rank, uint64_t tile) { return reinterpret_cast<int64_t*>(Base(rank, tile) + exchange_offset_); }
  // Rows that a rank expects, and where they are to lie in its result: room for two numbers for each rank.
  int64_t* expectations(int rank, uint64_t tile) {
    return reinterpret_cast<int64_t*>(Base(rank, tile) + expectations_offset_);
  }
  std::byte* payload(int rank, uint64_t tile) { return Base(rank, tile) + payload_offset_; }
  // Bytes that a rank has no memory for; 0 if it has. Travels with `reduced` of a tile that nobody reduces.
  int64_t& unallocated(int rank, uint64_t tile) { return Slot(rank, tile)->unallocated; }
  // Beside the header in one cache line: kInlineBytes that arrive with it.
  std::byte* inline_payload(int rank, uint64_t tile) { return Slot(rank, tile)->inline_bytes; }
  // In the same place: how many runs of its region the sender's tensors are, and the first of them; the others are the
  // payload. 0: its tensors are not all in its region.
  struct Runs {
    int64_t count;
    RegionRun first;
  };
  static_assert(sizeof(Runs) <= kInlineBytes);
  Runs& runs(int rank, uint64_t tile) { return *reinterpret_cast<Runs*>(inline_payload(rank, tile)); }
  std::span<std::byte> region(int rank) const {
    return regions_.empty() ? std::span<std::byte>() : regions_[static_cast<size_t>(rank)];
  }

 private:
  struct alignas(kCacheLine) SlotWords {
    std::atomic<uint64_t> packed;
    TileHeader header;
    std::byte inline_bytes[kInlineBytes];
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
  uint64_t consumed_by_all_ = 0;  // as last seen
  bool published_ = false;
};

}  // namespace horocache::data
