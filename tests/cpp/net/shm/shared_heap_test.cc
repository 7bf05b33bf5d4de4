#include "net/shm/shared_heap.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <vector>

#include "base/fork.h"
#include "net/shm/arena.h"

namespace horocache::net {
namespace {

constexpr size_t kBytes = size_t{8} << 20;

std::shared_ptr<SharedHeap> HeapOf(int rank, std::shared_ptr<SharedRegions>* regions) {
  *regions = SharedRegions::OnHeap(kBytes, 2);
  return std::make_shared<SharedHeap>(*regions, rank);
}

TEST(SharedHeap, HandsOutWholePagesOfItsOwnRange) {
  std::shared_ptr<SharedRegions> regions;
  const auto heap = HeapOf(1, &regions);
  std::vector<std::shared_ptr<SharedBlock>> blocks;
  for (const size_t bytes : {1u, 4096u, 4097u, 100000u}) {
    blocks.push_back(heap->Allocate(bytes));
    ASSERT_NE(blocks.back(), nullptr);
    const std::span<std::byte> memory = blocks.back()->memory();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 4096, 0u);
    EXPECT_GE(memory.size(), bytes);
    EXPECT_GE(memory.data(), regions->of(1).data());
    EXPECT_LE(memory.data() + memory.size(), regions->of(1).data() + kBytes);
    for (const std::byte value : memory) ASSERT_EQ(value, std::byte{0});
    std::memset(memory.data(), 0x5a, memory.size());
  }
  EXPECT_EQ(heap->bytes(), 4096 * (1 + 1 + 2 + 25));
}

TEST(SharedHeap, FreesBlocksWithoutReferencesAndMergesNeighbours) {
  std::shared_ptr<SharedRegions> regions;
  const auto heap = HeapOf(0, &regions);
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}}) {
    std::vector<std::shared_ptr<SharedBlock>> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(heap->Allocate(kBytes / 4));
    std::memset(blocks[1]->memory().data(), 1, 100);
    const std::shared_ptr<SharedBlock> second = blocks[1];
    for (const int i : order) blocks[static_cast<size_t>(i)].reset();
    EXPECT_EQ(heap->bytes(), static_cast<int64_t>(kBytes / 4));
    EXPECT_EQ(heap->Allocate(kBytes), nullptr);
  }
  EXPECT_EQ(heap->bytes(), 0);
  const auto all = heap->Allocate(kBytes);
  ASSERT_NE(all, nullptr);
  for (size_t i = 0; i < kBytes; i += 512) ASSERT_EQ(all->memory()[i], std::byte{0});
}

TEST(SharedHeap, FindsTheBlockOfAnAddress) {
  std::shared_ptr<SharedRegions> regions;
  const auto heap = HeapOf(0, &regions);
  const auto first = heap->Allocate(8192), second = heap->Allocate(4096);
  EXPECT_EQ(heap->Find(first->memory().data()), first);
  EXPECT_EQ(heap->Find(first->memory().data() + 8191), first);
  EXPECT_EQ(heap->Find(second->memory().data()), second);
  EXPECT_EQ(heap->Find(second->memory().data() + 4096), nullptr);
  EXPECT_EQ(heap->Find(regions->of(1).data()), nullptr);
  const std::byte elsewhere{};
  EXPECT_EQ(heap->Find(&elsewhere), nullptr);
}

TEST(SharedHeap, HandsOutNothingWhenClosedOrFull) {
  std::shared_ptr<SharedRegions> regions;
  const auto heap = HeapOf(0, &regions);
  EXPECT_EQ(heap->Allocate(kBytes + 1), nullptr);
  const auto half = heap->Allocate(kBytes / 2), other = heap->Allocate(kBytes / 2);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(heap->Allocate(1), nullptr);
  heap->Close();
  std::byte* const kept = half->memory().data();
  *kept = std::byte{7};
  EXPECT_EQ(heap->Allocate(1), nullptr);
  EXPECT_EQ(*kept, std::byte{7});
}

TEST(SharedHeap, BlocksOutliveHeapAndArena) {
  std::shared_ptr<SharedBlock> block;
  {
    ArenaLayout layout{.ranks = 2, .max_words = 4, .region_bytes = kBytes};
    auto arena = Arena::CreateShared(layout);
    ASSERT_TRUE(arena.ok()) << arena.status().message();
    (*arena)->CloseFd();
    ASSERT_NE((*arena)->regions(), nullptr);
    block = std::make_shared<SharedHeap>((*arena)->regions(), 1)->Allocate(10000);
    ASSERT_NE(block, nullptr);
    std::memset(block->memory().data(), 3, 10000);
  }
  EXPECT_EQ(block->memory()[9999], std::byte{3});
}

TEST(SharedHeap, RanksMapAllRegionsAndMemoryIsAllocatedOnUse) {
  ArenaLayout layout{.ranks = 2, .max_words = 4, .data_bytes = 4096, .message_chunks = 0, .region_bytes = 1 << 30};
  auto arena = Arena::CreateShared(layout);
  ASSERT_TRUE(arena.ok());
  auto attached = Arena::Attach(dup((*arena)->fd()));
  ASSERT_TRUE(attached.ok()) << attached.status().message();
  const auto blocks_of_file = [&] {
    struct stat file{};
    EXPECT_EQ(fstat((*arena)->fd(), &file), 0);
    return file.st_blocks * 512;
  };
  const int64_t before = blocks_of_file();
  EXPECT_LT(before, 2 << 20);
  const auto heap = std::make_shared<SharedHeap>((*arena)->regions(), 0);
  auto block = heap->Allocate(kBytes);
  ASSERT_NE(block, nullptr);
  EXPECT_GE(blocks_of_file(), before + static_cast<int64_t>(kBytes));
  const auto offset = static_cast<size_t>(block->memory().data() - (*arena)->regions()->of(0).data());
  block->memory()[5] = std::byte{42};
  EXPECT_EQ((*attached)->regions()->of(0)[offset + 5], std::byte{42});
  block.reset();
  EXPECT_EQ(blocks_of_file(), before);
}

// True if `check` returns true in a child of fork.
bool HoldsInChild(const std::function<bool()>& check) {
  const pid_t child = Fork();
  if (child == 0) _exit(check() ? 0 : 1);
  int status = -1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(SharedHeap, AForkedChildWritesItsOwnCopyAndFreesNothing) {
  ArenaLayout layout{.ranks = 2, .max_words = 4, .data_bytes = 4096, .region_bytes = kBytes};
  auto arena = Arena::CreateShared(layout);
  ASSERT_TRUE(arena.ok());
  auto attached = Arena::Attach(dup((*arena)->fd()));
  ASSERT_TRUE(attached.ok());
  const auto heap = std::make_shared<SharedHeap>((*arena)->regions(), 1);
  std::vector<std::shared_ptr<SharedBlock>> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(heap->Allocate(10000));
  blocks[1].reset();  // a hole
  std::byte& first = blocks[0]->memory()[0];
  std::byte& last = blocks[2]->memory()[9999];
  first = last = std::byte{9};
  const auto writes_its_own = [&] {
    if (first != std::byte{9} || last != std::byte{9}) return false;
    first = last = std::byte{5};
    const bool in_its_own_child = HoldsInChild([&] {
      const bool same = last == std::byte{5};
      last = std::byte{6};
      return same;
    });
    const bool own = first == std::byte{5} && last == std::byte{5};
    blocks.clear();
    return in_its_own_child && own;
  };
  EXPECT_TRUE(HoldsInChild(writes_its_own));
  EXPECT_TRUE(HoldsInChild(writes_its_own)) << "a second child";
  EXPECT_EQ(first, std::byte{9});
  EXPECT_EQ(last, std::byte{9});
  const auto offset = static_cast<size_t>(&last - (*arena)->regions()->of(1).data());
  EXPECT_EQ((*attached)->regions()->of(1)[offset], std::byte{9}) << "in the mapping of the other rank";
}

TEST(SharedHeap, AChildForkedAfterTheJobHasItsOwnCopy) {
  std::shared_ptr<SharedBlock> block;
  {
    auto arena = Arena::CreateShared({.ranks = 2, .max_words = 4, .data_bytes = 4096, .region_bytes = kBytes});
    ASSERT_TRUE(arena.ok());
    block = std::make_shared<SharedHeap>((*arena)->regions(), 0)->Allocate(4096);
  }
  ASSERT_NE(block, nullptr);
  EXPECT_TRUE(HoldsInChild([&] {
    block->memory()[0] = std::byte{5};
    // The other rank's range is not mapped in the child. Other memory may be there when the child drops the tensor.
    void* own = mmap(block->memory().data() + kBytes, 4096, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (own == MAP_FAILED) return false;
    block.reset();
    *static_cast<std::byte*>(own) = std::byte{1};
    return true;
  }));
  EXPECT_EQ(block->memory()[0], std::byte{0});
}

}  // namespace
}  // namespace horocache::net
