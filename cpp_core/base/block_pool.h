// Memory for objects that are made and deleted again and again, so that a steady state allocates nothing.
//
// Threads: one at a time. The pool outlives its objects.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>
#include <vector>

namespace horocache {

class BlockPool {
 public:
  BlockPool() = default;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;
  ~BlockPool() {
    for (const auto& [bytes, block] : blocks_) ::operator delete(block);
  }

  // Takes the block of a deleted object of the same size, or allocates one.
  void* Take(size_t bytes) {
    const auto fits = [bytes](const auto& spare) { return spare.first == bytes; };
    const auto found = std::ranges::find_if(blocks_, fits);
    if (found == blocks_.end()) {
      blocks_.reserve(++made_);  // so that Give needs no memory
      return ::operator new(bytes);
    }
    void* const block = found->second;
    *found = blocks_.back();
    blocks_.pop_back();
    return block;
  }
  void Give(void* block, size_t bytes) { blocks_.emplace_back(bytes, block); }

 private:
  std::vector<std::pair<size_t, void*>> blocks_;  // of deleted objects, by size
  size_t made_ = 0;
};

// A base of objects whose memory is a pool's: `new (pool) Some(...)`, and `delete` as usual.
class Pooled {
 public:
  static void* operator new(size_t bytes, BlockPool* pool) {
    const size_t block_bytes = sizeof(Header) + bytes;
    auto* const header = static_cast<Header*>(pool->Take(block_bytes));
    *header = {pool, block_bytes};
    return header + 1;
  }
  static void operator delete(void* memory) {
    auto* const header = static_cast<Header*>(memory) - 1;
    header->pool->Give(header, header->bytes);
  }
  static void operator delete(void* memory, BlockPool*) { operator delete(memory); }

 private:
  // Precedes each object in its block.
  struct alignas(std::max_align_t) Header {
    BlockPool* pool;
    size_t bytes;  // of the block
  };
};

}  // namespace horocache
