// Allocates pieces of this rank's region for tensors.
//
// A piece is a SharedBlock. The tensor that lies in it holds it, and so does an operation while it is in flight. So
// memory that other ranks may write to is not allocated again before the last of them releases the block.
//
// Threads: any. The blocks own the heap, so that it lives as long as they do.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "base/mutex.h"
#include "net/shm/shared_regions.h"

namespace horocache::net {

class SharedHeap;

class SharedBlock {
 public:
  SharedBlock(std::shared_ptr<SharedHeap> heap, std::span<std::byte> memory)
      : heap_(std::move(heap)), memory_(memory) {}
  ~SharedBlock();
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;

  std::span<std::byte> memory() const { return memory_; }
  bool Holds(const std::byte* at) const { return at >= memory_.data() && at < memory_.data() + memory_.size(); }

 private:
  const std::shared_ptr<SharedHeap> heap_;
  const std::span<std::byte> memory_;
};

class SharedHeap : public std::enable_shared_from_this<SharedHeap> {
 public:
  SharedHeap(std::shared_ptr<SharedRegions> regions, int rank);

  // Returns whole pages of zeros; null if the region is full, memory is short, or the heap is closed.
  std::shared_ptr<SharedBlock> Allocate(size_t bytes) HC_EXCLUDES(mutex_);
  // The block that contains `at`; null if there is none. An address outside the region costs two comparisons.
  std::shared_ptr<SharedBlock> Find(const std::byte* at) HC_EXCLUDES(mutex_);
  // Makes Allocate return null from now on, because a rank that has not noticed an error may still write to freed
  // blocks.
  void Close() { closed_ = true; }
  // Bytes that are allocated now.
  int64_t bytes() const { return bytes_; }

 private:
  friend class SharedBlock;
  void Free(std::span<std::byte> memory) HC_EXCLUDES(mutex_);

  const std::shared_ptr<const SharedRegions> regions_;
  const std::span<std::byte> range_;
  const pid_t process_;
  std::atomic<bool> closed_{false};
  std::atomic<int64_t> bytes_{0};
  Mutex mutex_;
  std::map<std::byte*, size_t> free_ HC_GUARDED_BY(mutex_);  // free pieces; adjacent ones are merged
  std::map<std::byte*, std::weak_ptr<SharedBlock>> blocks_ HC_GUARDED_BY(mutex_);
};

}  // namespace horocache::net
