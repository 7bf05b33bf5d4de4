#include "data/backends/shm/tile_slots.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/memory.h"

namespace horocache::data {
namespace {

// Bytes of the smallest tile: a cache line for each rank.
int64_t MinimumTile(int ranks) { return kCacheLine * ranks; }

}  // namespace

// Bytes of a slot between its words and its payload: the exchange and the expectations.
int64_t ShmPort::RowsBytes(int ranks) { return RoundUp(3 * 8 * int64_t{ranks}, kCacheLine); }

// Bytes of a data area that do not depend on the size of a tile.
int64_t ShmPort::FixedBytes(int ranks) {
  return kCacheLine + kDepth * (static_cast<int64_t>(sizeof(SlotWords)) + RowsBytes(ranks));
}

Status ShmPort::Check(const SharedArea& area) {
  const int64_t needed = FixedBytes(area.size) + kDepth * MinimumTile(area.size);
  if (static_cast<int64_t>(area.data_bytes) >= needed) return Status::Ok();
  return Status(StatusCode::kInvalidArgument, "shm_bytes=" + std::to_string(area.data_bytes) + " is too small for " +
                                                  std::to_string(area.size) + " ranks: shm needs at least " +
                                                  std::to_string(needed));
}

ShmPort::ShmPort(const SharedArea& area, int64_t tile_bytes)
    : rank_(area.rank), size_(area.size), ring_(area.ring), regions_(area.regions) {
  const int64_t unit = MinimumTile(size_);
  const int64_t room = (static_cast<int64_t>(area.data_bytes) - FixedBytes(size_)) / kDepth;
  tile_bytes_ = std::clamp(RoundUp(tile_bytes, unit), unit, std::max(unit, room / unit * unit));
  exchange_offset_ = 8 * size_ <= kHeaderDataBytes ? offsetof(SlotWords, header_data) : sizeof(SlotWords);
  expectations_offset_ = sizeof(SlotWords) + 8 * static_cast<size_t>(size_);
  payload_offset_ = sizeof(SlotWords) + static_cast<size_t>(RowsBytes(size_));
  slot_bytes_ = payload_offset_ + static_cast<size_t>(tile_bytes_);
  for (std::byte* base : area.data) {
    consumed_.push_back(reinterpret_cast<std::atomic<uint64_t>*>(base));
    slots_.push_back(base + kCacheLine);
  }
}

bool ShmPort::SlotFree(uint64_t tile) {
  if (tile < consumed_by_all_ + kDepth) return true;
  consumed_by_all_ = std::numeric_limits<uint64_t>::max();
  for (const std::atomic<uint64_t>* consumed : consumed_) {
    consumed_by_all_ = std::min(consumed_by_all_, consumed->load(std::memory_order_acquire));
  }
  return tile < consumed_by_all_ + kDepth;
}

void ShmPort::PublishAnnounced(uint64_t tile) {
  Slot(rank_, tile)->packed.store(2 * tile + 1, std::memory_order_release);
  published_ = true;
}

void ShmPort::PublishPacked(uint64_t tile) {
  Slot(rank_, tile)->packed.store(2 * tile + 2, std::memory_order_release);
  published_ = true;
}

void ShmPort::PublishReduced(uint64_t tile) {
  Slot(rank_, tile)->reduced.store(tile + 1, std::memory_order_release);
  published_ = true;
}

void ShmPort::PublishConsumed(uint64_t tile) {
  consumed_[rank_]->store(tile + 1, std::memory_order_release);
  published_ = true;
}

void ShmPort::Ring() {
  if (!published_) return;
  published_ = false;
  if (!ring_) return;
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) ring_(r);
  }
}

}  // namespace horocache::data
