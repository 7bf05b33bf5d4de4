// The windows of several ranks in one process, and rounds over them whose every number is checked.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/memory.h"
#include "moe/window.h"
#include "net/mpi/memory_mpi.h"
#include "net/shm/message_link.h"

namespace horocache::moe {

using Act = Exchange::Act;

inline constexpr int kWidth = 3;  // numbers in a row
inline constexpr std::array<int64_t, 2> kRowBytes = {kWidth * sizeof(int64_t), kWidth * sizeof(int64_t)};

// The way between machines. kNone: all ranks are on one.
enum class Between { kNone, kLink, kRma };

inline std::string NameOf(Between between) {
  return between == Between::kNone ? "OneHost" : between == Between::kLink ? "Link" : "Rma";
}

// The windows of all ranks, in one process.
class Windows {
 public:
  // `machines`: the machine of each rank; empty: all are on one. Ranks of different machines are remote.
  Windows(std::vector<bool> hosts, uint32_t depth, int rows, std::vector<int> machines = {},
          Between between = Between::kLink)
      : messages_(static_cast<int>(hosts.size())) {
    if (between == Between::kNone) machines.clear();
    machines.resize(hosts.size());
    Geometry geometry{std::move(hosts), depth, rows * kRowBytes[0], rows * kRowBytes[1]};
    std::vector<std::string> names;
    for (int rank = 0; rank < geometry.ranks(); ++rank) {
      const auto bytes = static_cast<size_t>(BlockBytes(geometry, rank));
      std::shared_ptr<std::byte> block(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)), &std::free);
      std::memset(block.get(), 0, bytes);
      blocks_.push_back(block);
      names.push_back("rank " + std::to_string(rank));
    }
    Window::Blocks blocks;
    for (const auto& block : blocks_) {
      blocks.base.push_back(block.get());
      regions_.push_back(std::make_shared<Region>());
      blocks.regions.push_back({regions_.back()->memory.data(), regions_.back()->memory.size()});
    }
    const auto arena = net::Arena::CreateOnHeap({.ranks = geometry.ranks(),
                                                 .max_words = 8,
                                                 .ring_bytes = 256,
                                                 .data_bytes = 0,
                                                 .message_chunks = 16,
                                                 .message_chunk_bytes = 128});
    for (int rank = 0; rank < geometry.ranks(); ++rank) {
      Window::Blocks own = blocks;
      const std::vector<bool> remote = HideOtherMachines(&own, machines, rank);
      if (std::ranges::find(remote, true) != remote.end()) {
        net::Doorbell bell = Window::BellOf(blocks_[static_cast<size_t>(rank)].get());
        const auto& block = blocks_[static_cast<size_t>(rank)];
        const RemoteTarget target{{block.get(), static_cast<size_t>(BlockBytes(geometry, rank))}, block};
        std::unique_ptr<Transport> transport;
        if (between == Between::kLink) {
          transport = MakeLinkTransport(net::MakeShmLink(arena, rank), remote, target);
        } else {
          mpi_.push_back(std::make_unique<net::MemoryMpi>(&messages_, rank));
          transport = std::move(*MakeRmaTransport(mpi_.back()->World(), names, target));
        }
        own.carrier =
            std::make_shared<Carrier>(std::move(transport), geometry.ranks(), [bell]() mutable { bell.Ring(); });
      }
      own.allocate = [this, region = regions_[static_cast<size_t>(rank)]](size_t bytes) {
        return Allocate(region, bytes);
      };
      counters_.push_back(std::make_shared<ExchangeCounters>());
      all_.push_back(std::make_unique<Window>(rank, geometry, own, names, /*spin_ns=*/0, counters_.back()));
    }
  }
  ~Windows() {
    for (const auto& window : all_) window->Close();  // a carrier waits for the goodbyes of the others
  }
  Window& operator[](int rank) { return *all_[static_cast<size_t>(rank)]; }
  // How many pieces were asked for, of all ranks; those after the first `most` are not there.
  int spilled() const { return spilled_; }
  void LimitSpills(int most) { most_spills_ = most; }
  // Zeroes the memory of a rank, as the end of its job does.
  void FreeBlock(int rank) {
    std::memset(blocks_[static_cast<size_t>(rank)].get(), 0,
                static_cast<size_t>(BlockBytes(all_[0]->geometry(), rank)));
  }
  const ExchangeCounters& counters(int rank) const { return *counters_[static_cast<size_t>(rank)]; }
  int ranks() const { return static_cast<int>(all_.size()); }
  // Runs `body` for each rank in a thread of its own.
  void Run(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks(); ++rank) threads.emplace_back(body, rank);
    for (std::thread& thread : threads) thread.join();
  }

 private:
  // Which ranks are remote for a rank.
  static std::vector<bool> HideOtherMachines(Window::Blocks* blocks, const std::vector<int>& machines, int rank) {
    std::vector<bool> remote;
    for (size_t peer = 0; peer < machines.size(); ++peer) {
      remote.push_back(machines[peer] != machines[static_cast<size_t>(rank)]);
      if (remote.back()) blocks->base[peer] = nullptr;
    }
    return remote;
  }
  // Memory that is given once.
  struct Region {
    std::vector<std::byte> memory = std::vector<std::byte>(8 << 20);
    size_t used = 0;
  };
  std::shared_ptr<std::byte> Allocate(const std::shared_ptr<Region>& region, size_t bytes) {
    if (spilled_.fetch_add(1) >= most_spills_ || region->used + bytes > region->memory.size()) return nullptr;
    std::byte* const at = region->memory.data() + region->used;
    region->used += RoundUp(bytes, kCacheLine);
    return {region, at};
  }

  net::MemoryMessages messages_;
  std::vector<std::unique_ptr<net::MemoryMpi>> mpi_;
  std::vector<std::shared_ptr<Region>> regions_;
  std::atomic<int> spilled_{0};
  int most_spills_ = 1'000'000;
  std::vector<std::shared_ptr<ExchangeCounters>> counters_;
  std::vector<std::shared_ptr<std::byte>> blocks_;
  std::vector<std::unique_ptr<Window>> all_;
};

inline int64_t Pattern(int from, int to, uint32_t round, size_t at) {
  return ((int64_t{from} * 64 + to) * 100'000 + round) * 1'000 + static_cast<int64_t>(at);
}

inline int64_t* Numbers(std::span<std::byte> memory) { return reinterpret_cast<int64_t*>(memory.data()); }
inline size_t Count(std::span<std::byte> memory) { return memory.size() / sizeof(int64_t); }

// The events of one round of a rank.
struct Round {
  Status status;
  std::vector<int> taken, served;
};

// A host returns each number plus one. Every number is checked: it names both ranks, the round and its position.
inline Round RunRound(Window* window, const Plan& plan, uint32_t tag = 0, const std::function<void()>& work = nullptr) {
  Round done;
  done.status = window->Enter(plan, tag, kRowBytes, nullptr);
  if (!done.status.ok()) return done;
  const int own = window->exchange().rank();
  const uint32_t round = window->exchange().round();
  for (;;) {
    StatusOr<Window::Step> step = window->Next(nullptr);
    if (!step.ok()) {
      done.status = step.status();
      return done;
    }
    switch (step->act) {
      case Act::kSend:
        for (size_t i = 0; i < Count(step->batch); ++i) Numbers(step->batch)[i] = Pattern(own, step->peer, round, i);
        break;
      case Act::kServe:
        if (work) work();
        for (size_t i = 0; i < Count(step->batch); ++i) {
          EXPECT_EQ(Numbers(step->batch)[i], Pattern(step->peer, own, round, i)) << "on rank " << own;
          Numbers(step->result)[i] = Numbers(step->batch)[i] + 1;
        }
        done.served.push_back(step->peer);
        break;
      case Act::kTake:
        for (size_t i = 0; i < Count(step->result); ++i)
          EXPECT_EQ(Numbers(step->result)[i], Pattern(own, step->peer, round, i) + 1) << "on rank " << own;
        done.taken.push_back(step->peer);
        break;
      default:
        return done;
    }
  }
}

inline Plan Lossless(std::vector<int32_t> rows) {
  const int all = static_cast<int>(rows.size()) - 1;
  return {.rows = std::move(rows), .epsilon = all};
}

}  // namespace horocache::moe
