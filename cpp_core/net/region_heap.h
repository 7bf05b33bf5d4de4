// Hands out pieces of this rank's region.
//
// A piece is a RegionBlock, held by the tensor that was made on it and, while it is in flight, by the operation: what
// other ranks may write to is never handed out a second time meanwhile. It is given back when the last of them lets go.
//
// Shared: any thread. The blocks own the heap, so that it lives as long as they do.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "base/mutex.h"
#include "net/regions.h"

namespace horocache::net {

class RegionHeap;

class RegionBlock {
 public:
  RegionBlock(std::shared_ptr<RegionHeap> heap, std::span<std::byte> memory)
      : heap_(std::move(heap)), memory_(memory) {}
  ~RegionBlock();
  RegionBlock(const RegionBlock&) = delete;
  RegionBlock& operator=(const RegionBlock&) = delete;

  std::span<std::byte> memory() const { return memory_; }
  bool Holds(const std::byte* at) const { return at >= memory_.data() && at < memory_.data() + memory_.size(); }

 private:
  const std::shared_ptr<RegionHeap> heap_;
  const std::span<std::byte> memory_;
};

class RegionHeap : public std::enable_shared_from_this<RegionHeap> {
 public:
  RegionHeap(std::shared_ptr<Regions> regions, int rank);

  // Zeros, whole pages; null if there is no room, no memory, or the heap is closed.
  std::shared_ptr<RegionBlock> Allocate(size_t bytes) HC_EXCLUDES(mutex_);
  // The block that `at` lies in; null if there is none. Outside of the region it costs two comparisons.
  std::shared_ptr<RegionBlock> Find(const std::byte* at) HC_EXCLUDES(mutex_);
  // Nothing is handed out any more: a rank that did not take notice of an error may still write to what was.
  void Close() { closed_ = true; }
  // What is handed out now.
  int64_t bytes() const { return bytes_; }

 private:
  friend class RegionBlock;
  void Free(std::span<std::byte> memory) HC_EXCLUDES(mutex_);

  const std::shared_ptr<const Regions> regions_;
  const std::span<std::byte> range_;
  const pid_t process_;
  std::atomic<bool> closed_{false};
  std::atomic<int64_t> bytes_{0};
  Mutex mutex_;
  std::map<std::byte*, size_t> free_ HC_GUARDED_BY(mutex_);  // neighbours are one piece
  std::map<std::byte*, std::weak_ptr<RegionBlock>> blocks_ HC_GUARDED_BY(mutex_);
};

}  // namespace horocache::net
