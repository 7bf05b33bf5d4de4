// The message engine over links in memory: N ranks in one thread, with seeded schedules and a clock of the test.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "net/memory_link.h"
#include "runtime/p2p/engine.h"
#include "runtime/p2p/message_operation.h"

namespace horocache::runtime::testing {

inline constexpr int64_t kWarnNs = 10 * kNsPerS;
inline constexpr int64_t kFailNs = 600 * kNsPerS;
inline constexpr size_t kSmall = 100;
inline constexpr size_t kLarge = 200'000;

// A send or recv, with its tensor.
struct Message {
  Operation* operation = nullptr;
  std::vector<std::byte> memory;
  bool done() const { return IsDone(*operation); }
  const Status& status() const { return operation->status; }
};
using Handle = std::unique_ptr<Message>;

inline std::vector<std::byte> Content(size_t bytes, uint64_t seed) {
  horocache::testing::SeededRandom random(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random.Next());
  return out;
}

class World {
 public:
  explicit World(int ranks, uint64_t seed = 0, int64_t delay_ns = 0, size_t room = 4)
      : network_(ranks, seed, delay_ns, room),
        order_(seed + 1000),
        left_(static_cast<size_t>(ranks)),
        computed_ns_(static_cast<size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      PointToPointConfig config;
      config.rank = rank;
      config.links.push_back(std::make_unique<net::MemoryLink>(&network_, rank));
      for (int peer = 0; peer < ranks; ++peer) config.routes.push_back({0, peer});
      config.stall_warn_ns = kWarnNs;
      config.stall_fail_ns = kFailNs;
      config.stall_fail_computing = false;
      config.computed_ns = [this](int peer) { return computed_ns_[static_cast<size_t>(peer)]; };
      config.has_left = [this](int peer) { return static_cast<bool>(left_[static_cast<size_t>(peer)]); };
      metrics_.push_back(std::make_unique<Metrics>(ranks));
      engines_.push_back(std::make_unique<PointToPoint>(std::move(config), &table_, metrics_.back().get()));
    }
  }

  PointToPoint& operator[](int rank) { return *engines_[static_cast<size_t>(rank)]; }
  net::MemoryNetwork& network() { return network_; }
  Metrics& metrics(int rank) { return *metrics_[static_cast<size_t>(rank)]; }
  void SetComputed(int rank) { computed_ns_[static_cast<size_t>(rank)] = network_.now_ns; }
  void SetLeft(int rank) { left_[static_cast<size_t>(rank)] = true; }

  Handle Send(int from, int to, std::vector<std::byte> content, int32_t tag = 0, uint32_t set = 0) {
    return Submit(wire::Op::kSend, from, to, std::move(content), tag, set, DType::kUint8);
  }
  Handle Recv(int rank, int from, size_t bytes, int32_t tag = 0, uint32_t set = 0, DType dtype = DType::kUint8) {
    return Submit(wire::Op::kRecv, rank, from, std::vector<std::byte>(bytes), tag, set, dtype);
  }

  // Steps all ranks in random orders, as time goes on, until nothing moves.
  void Run() {
    for (int quiet = 0; quiet < 3;) {
      network_.now_ns += 1 + network_.max_delay_ns / 2;
      bool moved = false;
      for (size_t i = 0; i < engines_.size(); ++i) {
        moved |= engines_[order_.Below(engines_.size())]->Step(network_.now_ns);
      }
      for (auto& engine : engines_) moved |= engine->Step(network_.now_ns);
      quiet = moved ? 0 : quiet + 1;
    }
  }
  // Steps all ranks in rank order, `times` times, `ns` apart.
  void StepAll(int times, int64_t ns) {
    for (int i = 0; i < times; ++i) {
      network_.now_ns += ns;
      for (auto& engine : engines_) engine->Step(network_.now_ns);
    }
  }
  void Advance(int64_t ns) {
    network_.now_ns += ns;
    for (auto& engine : engines_) engine->Check(network_.now_ns);
  }

 private:
  Handle Submit(wire::Op op, int rank, int peer, std::vector<std::byte> memory, int32_t tag, uint32_t set,
                DType dtype) {
    auto message = std::make_unique<Message>();
    message->memory = std::move(memory);
    Operation* operation = table_.New();
    message->operation = operation;
    wire::Signature& signature = operation->request.signature;
    signature.op = op;
    signature.root = peer;
    signature.tensors.assign(1, {"", dtype, {}});
    operation->process_set = set;
    operation->tag = tag;
    const auto count = static_cast<int64_t>(message->memory.size() / DTypeBytes(dtype));
    operation->tensors.assign(1, {message->memory.data(), message->memory.data(), count, count});
    operation->submitted_ns = network_.now_ns;
    EXPECT_TRUE(CheckMessage(*operation, network_.size).ok());
    (*this)[rank].Submit(operation, network_.now_ns);
    return message;
  }

  net::MemoryNetwork network_;
  horocache::testing::SeededRandom order_;
  std::vector<bool> left_;
  std::vector<int64_t> computed_ns_;  // when each rank last computed
  observe::FlightRecorder recorder_;
  Metrics table_metrics_{1};
  OperationTable table_{&recorder_, &table_metrics_, {}};
  std::vector<std::unique_ptr<Metrics>> metrics_;
  std::vector<std::unique_ptr<PointToPoint>> engines_;
};

inline std::string ReportOf(PointToPoint& engine) {
  std::string all, one;
  while (engine.NextReport(&one)) all += one + "\n";
  return all;
}

}  // namespace horocache::runtime::testing
