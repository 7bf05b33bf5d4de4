#include "program/execution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "program/ring.h"

namespace horocache::program {
namespace {

constexpr int64_t kSlotBytes = 1024;

// Messages between ranks that are polled in turns on one thread.
class Wires {
 public:
  explicit Wires(size_t slots) : slots_(slots) {}

  class End final : public Connections {
   public:
    End(Wires* wires, const RankProgram* program, int rank) : wires_(*wires), program_(*program), rank_(rank) {}
    std::byte* Claim(int thread_block) override {
      if (Out(thread_block).size() >= wires_.slots_) return nullptr;
      std::vector<std::byte>& slot = claimed_[thread_block];
      if (slot.empty()) slot.assign(kSlotBytes, std::byte{0xee});
      return slot.data();
    }
    void Push(int thread_block, int64_t bytes) override {
      ASSERT_LE(bytes, kSlotBytes);
      claimed_[thread_block].resize(static_cast<size_t>(bytes));
      Out(thread_block).push_back(std::move(claimed_[thread_block]));
      claimed_[thread_block].clear();
      ++wires_.messages;
    }
    const std::byte* Peek(int thread_block, int64_t) override {
      static const std::byte nothing{};
      auto& queue = In(thread_block);
      return queue.empty() ? nullptr : queue.front().empty() ? &nothing : queue.front().data();
    }
    void Pop(int thread_block) override { In(thread_block).pop_front(); }

   private:
    std::deque<std::vector<std::byte>>& Out(int thread_block) {
      const ThreadBlock& one = program_.thread_blocks[static_cast<size_t>(thread_block)];
      return wires_.queues_[{rank_, one.send, one.channel}];
    }
    std::deque<std::vector<std::byte>>& In(int thread_block) {
      const ThreadBlock& one = program_.thread_blocks[static_cast<size_t>(thread_block)];
      return wires_.queues_[{one.receive, rank_, one.channel}];
    }
    Wires& wires_;
    const RankProgram& program_;
    const int rank_;
    std::map<int, std::vector<std::byte>> claimed_;
  };

  int messages = 0;

 private:
  const size_t slots_;
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> queues_;
};

struct Case {
  int ranks;
  int32_t refinement;
  int64_t elements;
  size_t slots;
  int64_t tile_bytes;
};

// Runs the ring, polling the ranks in a random order with a small budget; returns the data of each rank.
std::vector<std::vector<int64_t>> RunAll(const Program& program, const Case& one, uint64_t seed, Wires* wires) {
  const Sizes sizes(one.elements, sizeof(int64_t), program.classes, program.refinement, false);
  std::vector<std::vector<int64_t>> data;
  std::vector<std::unique_ptr<Wires::End>> ends;
  std::vector<std::unique_ptr<Execution>> runs;
  for (int rank = 0; rank < one.ranks; ++rank) {
    const RankProgram& mine = program.programs[static_cast<size_t>(rank)];
    data.emplace_back(static_cast<size_t>(one.elements) + 2, -1);  // with a guard word on either side
    for (int64_t i = 0; i < one.elements; ++i) data.back()[static_cast<size_t>(i) + 1] = 1000 * i + rank;
    ends.push_back(std::make_unique<Wires::End>(wires, &mine, rank));
    const int64_t message = one.tile_bytes > 0 ? one.tile_bytes : kSlotBytes;
    RunSite site{&program, rank, sizes, nullptr, {}, ends.back().get(), TileElements(program, sizes, message)};
    site.fold = data::FindKernels("scalar").value()->Find(DType::kInt64, wire::ReduceOp::kSum);
    site.buffers = {reinterpret_cast<std::byte*>(data.back().data() + 1), nullptr};
    runs.push_back(std::make_unique<Execution>(site));
  }
  std::mt19937_64 random(seed);
  for (int idle = 0; idle < 1000; ++idle) {
    const size_t rank = random() % runs.size();
    int64_t budget = 1 + static_cast<int64_t>(random() % 4096);
    if (runs[rank]->Advance(&budget)) idle = 0;
  }
  for (const auto& run : runs) {
    EXPECT_TRUE(run->finished()) << (run->Blocked(1).empty() ? "" : run->Blocked(1)[0]);
  }
  return data;
}

class RingExecution : public ::testing::TestWithParam<Case> {};

TEST_P(RingExecution, AddsUpEveryElementAndTouchesNothingElse) {
  const Case& one = GetParam();
  const Program program = Ring(one.ranks, one.refinement);
  Wires wires(one.slots);
  const auto data = RunAll(program, one, 7, &wires);
  for (int rank = 0; rank < one.ranks; ++rank) {
    const std::vector<int64_t>& mine = data[static_cast<size_t>(rank)];
    EXPECT_EQ(mine.front(), -1);
    EXPECT_EQ(mine.back(), -1);
    for (int64_t i = 0; i < one.elements; ++i) {
      ASSERT_EQ(mine[static_cast<size_t>(i) + 1], one.ranks * 1000 * i + one.ranks * (one.ranks - 1) / 2)
          << "rank " << rank << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RingExecution,
                         ::testing::Values(Case{2, 1, 1, 1, 0}, Case{2, 1, 1000, 1, 0}, Case{3, 1, 2, 1, 0},
                                           Case{3, 2, 997, 2, 64}, Case{4, 1, 4096, 1, 256}, Case{4, 3, 5003, 1, 0},
                                           Case{5, 1, 0, 1, 0}, Case{5, 2, 10007, 8, 128}, Case{8, 1, 3, 1, 0},
                                           Case{8, 1, 20011, 1, 1024}));

TEST(Execution, CutsChunksToTheSlots) {
  const Program program = Ring(2, 1);
  Wires wires(1);
  RunAll(program, {2, 1, 4096, 1, 0}, 1, &wires);
  EXPECT_EQ(wires.messages, 2 * 2 * (2048 * 8 / kSlotBytes));  // two ranks send two chunks each
}

TEST(Execution, DescribesItsWaits) {
  const Program program = Ring(3, 1);
  Wires wires(1);
  Wires::End end(&wires, &program.programs[0], 0);
  int64_t memory[3] = {1, 2, 3};
  RunSite site{&program, 0, Sizes(3, 8, 3, 1, false), nullptr, {}, &end, 1};
  site.fold = data::FindKernels("scalar").value()->Find(DType::kInt64, wire::ReduceOp::kSum);
  site.buffers = {reinterpret_cast<std::byte*>(memory), nullptr};
  Execution run(site);
  int64_t budget = 1 << 20;
  EXPECT_TRUE(run.Advance(&budget));
  EXPECT_FALSE(run.Advance(&budget));
  EXPECT_EQ(run.Blocked(4),
            (std::vector<std::string>{
                "rank 0 thread block 0 step 1 of tile 0 waits for a message from rank 2 on channel 0"}));
  std::vector<int> ranks;
  run.AddWaitingFor(&ranks);
  EXPECT_EQ(ranks, (std::vector<int>{2}));
}

TEST(Sizes, DivideEveryNumberOfElements) {
  for (const int64_t elements : {0, 1, 2, 7, 64, 1000, 1001, 65537}) {
    for (const int32_t classes : {1, 2, 3, 8}) {
      for (const int32_t refinement : {1, 2, 6}) {
        const Sizes sizes(elements, 4, classes, refinement, false);
        int64_t total = 0;
        for (int32_t fine = 0; fine < classes * refinement; ++fine) {
          EXPECT_EQ(sizes.Offset(fine), total);
          const int64_t part = sizes.PartElements(fine / refinement, fine % refinement);
          EXPECT_GE(part, 0);
          EXPECT_LE(part, sizes.MostPartElements());
          EXPECT_LE(sizes.ScratchOffset(fine) + sizes.MostPartElements(), sizes.ScratchOffset(fine + 1));
          total += part;
        }
        EXPECT_EQ(total, elements);
        EXPECT_EQ(sizes.Offset(classes * refinement), elements);
        EXPECT_EQ(sizes.Offset(2 * classes * refinement), 2 * elements);
      }
    }
  }
}

TEST(Sizes, OfVeryManyClassesAreComputedAtOnce) {
  const Sizes sizes(5, 1, 1 << 24, 1 << 10, true);
  EXPECT_EQ(sizes.MostPartElements(), 1);
  EXPECT_FALSE(sizes.fits());
}

TEST(Sizes, StartAtCacheLinesIfThereAreEnoughElements) {
  const Sizes sizes(1 << 16, 4, 3, 2, false);
  for (int32_t fine = 0; fine < 6; ++fine) EXPECT_EQ(sizes.Offset(fine) % 16, 0);
}

TEST(Sizes, TellWhetherAUniformProgramFits) {
  EXPECT_TRUE(Sizes(64, 4, 4, 1, true).fits());
  EXPECT_TRUE(Sizes(8, 4, 4, 2, true).fits());
  EXPECT_FALSE(Sizes(65, 4, 4, 1, true).fits());
  EXPECT_FALSE(Sizes(4, 4, 4, 2, true).fits());
}

}  // namespace
}  // namespace horocache::program
