#include "net/shm/shared_heap.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/memory.h"

namespace horocache::net {

SharedBlock::~SharedBlock() { heap_->Free(memory_); }

SharedHeap::SharedHeap(std::shared_ptr<SharedRegions> regions, int rank)
    : regions_(regions), range_(regions->of(rank)), process_(getpid()) {
  regions->Inherit(rank);
  free_.emplace(range_.data(), range_.size());
}

std::shared_ptr<SharedBlock> SharedHeap::Allocate(size_t bytes) {
  if (closed_ || bytes > range_.size()) return nullptr;
  const size_t rounded = RoundUp(std::max<size_t>(bytes, 1), kPage);
  std::span<std::byte> memory;
  {
    MutexLock lock(mutex_);
    // First fit by address: large pieces that live long are allocated first and stay together at the beginning.
    const auto found = std::ranges::find_if(free_, [rounded](const auto& piece) { return piece.second >= rounded; });
    if (found == free_.end()) return nullptr;
    const auto [at, size] = *found;
    free_.erase(found);
    if (size > rounded) free_.emplace(at + rounded, size - rounded);
    memory = {at, rounded};
  }
  bytes_ += static_cast<int64_t>(rounded);
  const bool committed = regions_->Commit(memory);
  auto block = std::make_shared<SharedBlock>(shared_from_this(), memory);  // frees the memory when dropped
  if (!committed) return nullptr;
  MutexLock lock(mutex_);
  blocks_.emplace(memory.data(), block);
  return block;
}

std::shared_ptr<SharedBlock> SharedHeap::Find(const std::byte* at) {
  if (at < range_.data() || at >= range_.data() + range_.size()) return nullptr;
  MutexLock lock(mutex_);
  const auto after = blocks_.upper_bound(const_cast<std::byte*>(at));
  if (after == blocks_.begin()) return nullptr;
  std::shared_ptr<SharedBlock> block = std::prev(after)->second.lock();
  return block != nullptr && block->Holds(at) ? block : nullptr;
}

void SharedHeap::Free(std::span<std::byte> memory) {
  if (getpid() != process_) return;  // a child of fork drops its copy of a tensor, not the parent's memory
  regions_->Release(memory);         // before it can be allocated again
  bytes_ -= static_cast<int64_t>(memory.size());
  MutexLock lock(mutex_);
  blocks_.erase(memory.data());
  auto [piece, _] = free_.emplace(memory.data(), memory.size());
  const auto next = std::next(piece);
  if (next != free_.end() && piece->first + piece->second == next->first) {
    piece->second += next->second;
    free_.erase(next);
  }
  if (piece == free_.begin()) return;
  const auto before = std::prev(piece);
  if (before->first + before->second != piece->first) return;
  before->second += piece->second;
  free_.erase(piece);
}

}  // namespace horocache::net
