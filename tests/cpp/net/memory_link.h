// Links between members in one process, for tests: what is sent arrives after a seeded number of looks.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "net/link.h"

namespace horocache::net {

// The wires between all members.
struct MemoryNetwork {
  struct Frame {
    std::string bytes;
    int looks = 0;  // how often the receiver still finds nothing
  };
  explicit MemoryNetwork(int size_in, uint64_t seed_in = 0)
      : size(size_in), random(seed_in), wires(static_cast<size_t>(size_in * size_in)) {}
  std::deque<Frame>& Wire(int from, int to) { return wires[static_cast<size_t>(from * size + to)]; }

  int size;
  std::mt19937_64 random;
  int most_looks = 0;
  size_t room = 4;  // frames under way per pair
  size_t max_frame_bytes = 64;
  std::vector<std::deque<Frame>> wires;
};

class MemoryLink final : public Link {
 public:
  MemoryLink(std::shared_ptr<MemoryNetwork> network, int rank) : network_(std::move(network)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return network_->size; }
  size_t max_frame_bytes() const override { return network_->max_frame_bytes; }
  bool must_poll() const override { return true; }
  const Status& broken() const override { return broken_; }
  void SayGoodbye() override { said_goodbye = true; }

  bool TrySend(int to, std::span<const std::byte> head, std::span<const std::byte> body) override {
    auto& wire = network_->Wire(rank_, to);
    if (wire.size() >= network_->room || !broken_.ok()) return false;
    std::string bytes(reinterpret_cast<const char*>(head.data()), head.size());
    bytes.append(reinterpret_cast<const char*>(body.data()), body.size());
    const int looks = network_->most_looks == 0 ? 0 : static_cast<int>(network_->random() % network_->most_looks);
    wire.push_back({std::move(bytes), looks});
    return true;
  }

  bool Receive(const Sink& sink) override {
    bool moved = false;
    for (int from = 0; from < network_->size; ++from) {
      auto& wire = network_->Wire(from, rank_);
      if (wire.empty() || wire.front().looks-- > 0) continue;
      const std::string bytes = std::move(wire.front().bytes);
      wire.pop_front();
      sink(from, std::as_bytes(std::span(bytes)));
      moved = true;
    }
    return moved;
  }

  void Break(Status why) { broken_ = std::move(why); }
  bool said_goodbye = false;

 private:
  const std::shared_ptr<MemoryNetwork> network_;
  const int rank_;
  Status broken_;
};

}  // namespace horocache::net
