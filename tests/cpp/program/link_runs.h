// Runs many operations over links of all ranks, polled in turns on one thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "data/kernels/fold.h"
#include "program/execution.h"
#include "program/links.h"
#include "program/shm_links.h"

namespace horocache::program {

inline constexpr size_t kAreaBytes = 160 << 10;

// The links of the ranks of one host.
class Host {
 public:
  explicit Host(int ranks, uint64_t last_flag = ShmLinks::kLastFlag) {
    data::SharedArea area;
    area.size = ranks;
    area.data_bytes = kAreaBytes;
    for (int rank = 0; rank < ranks; ++rank) {
      void* const memory = std::aligned_alloc(128, kAreaBytes);
      std::memset(memory, 0, kAreaBytes);
      memory_.emplace_back(static_cast<std::byte*>(memory));
      area.data.push_back(memory_.back().get());
    }
    area.ring = [this](int rank) { rung_.push_back(rank); };
    for (area.rank = 0; area.rank < ranks; ++area.rank) links_.push_back(std::make_unique<ShmLinks>(area, last_flag));
    area_ = std::move(area);
  }
  // The area of a rank, for other kinds of links. They use the same memory as the links of this class, so a test uses
  // only one kind.
  data::SharedArea area(int rank) const {
    data::SharedArea area = area_;
    area.rank = rank;
    return area;
  }
  std::vector<Links*> all() const {
    std::vector<Links*> all;
    for (const auto& one : links_) all.push_back(one.get());
    return all;
  }

  ShmLinks& links(int rank) { return *links_[static_cast<size_t>(rank)]; }
  std::vector<int>& rung() { return rung_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  data::SharedArea area_;
  std::vector<std::unique_ptr<ShmLinks>> links_;
  std::vector<int> rung_;
};

struct LinkCase {
  Protocol protocol;
  int slots;
  int64_t slot_bytes;
  int64_t elements;
};

// Runs `operations` operations on all ranks and checks the results. Each rank begins an operation as soon as it may;
// the ranks are a random number of steps apart.
inline void RunOperations(const std::vector<Links*>& all, const Program& program, const LinkCase& one, int operations,
                          uint64_t seed) {
  const Wirings wirings = WireUp(program);
  const Sizes sizes(one.elements, sizeof(int64_t), program.classes, program.refinement, false);
  const int64_t tile = TileElements(program, sizes, one.slot_bytes);
  const LinkPlan plan{&wirings, one.protocol, one.slots, one.slot_bytes, TilesOf(sizes, tile)};
  struct Rank {
    std::vector<int64_t> data;
    std::unique_ptr<Execution> run;
    int done = 0;
    bool begun = false;
  };
  std::vector<Rank> ranks(all.size());
  std::mt19937_64 random(seed);
  const auto step = [&](int number) {
    Rank& rank = ranks[static_cast<size_t>(number)];
    Links& links = *all[static_cast<size_t>(number)];
    if (rank.done == operations) return false;
    if (!rank.begun) {
      rank.begun = true;
      links.Begin(plan);
      rank.data.resize(static_cast<size_t>(one.elements));
      for (int64_t i = 0; i < one.elements; ++i) rank.data[static_cast<size_t>(i)] = 100 * i + number + rank.done;
    }
    if (!links.Ready()) return false;
    if (rank.run == nullptr) {
      RunSite site{&program, number, sizes, nullptr, {}, &links, tile};
      site.fold = data::FindKernels("scalar").value()->Find(DType::kInt64, wire::ReduceOp::kSum);
      site.buffers = {reinterpret_cast<std::byte*>(rank.data.data()), nullptr};
      rank.run = std::make_unique<Execution>(site);
    }
    int64_t budget = 1 + static_cast<int64_t>(random() % 2048);
    const bool moved = rank.run->Advance(&budget);
    if (!rank.run->finished() || !links.Settled()) return moved;
    const auto n = static_cast<int>(all.size());
    for (int64_t i = 0; i < one.elements; ++i) {
      EXPECT_EQ(rank.data[static_cast<size_t>(i)], n * (100 * i + rank.done) + n * (n - 1) / 2)
          << "operation " << rank.done;
    }
    links.End();
    rank.run.reset();
    rank.begun = false;
    ++rank.done;
    return true;
  };
  for (int idle = 0; idle < 2000; ++idle) {
    if (step(static_cast<int>(random() % ranks.size()))) idle = 0;
  }
  for (const Rank& rank : ranks) EXPECT_EQ(rank.done, operations);
}

}  // namespace horocache::program
