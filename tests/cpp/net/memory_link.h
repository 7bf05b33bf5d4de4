// Links between N ranks in one thread, for tests. Frames take a seeded random time. Each pair has room for a few
// frames.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "net/message_link.h"
#include "testing/seeded_random.h"

namespace horocache::net {

struct MemoryNetwork {
  MemoryNetwork(int ranks, uint64_t seed, int64_t delay_ns = 0, size_t room_frames = 4)
      : size(ranks), max_delay_ns(delay_ns), room(room_frames), random(seed), pairs(Count() * Count()) {}

  using Frame = std::vector<std::byte>;
  size_t Count() const { return static_cast<size_t>(size); }
  std::deque<std::pair<int64_t, Frame>>& Pair(int from, int to) {
    return pairs[static_cast<size_t>(from) * Count() + static_cast<size_t>(to)];
  }

  int size;
  int64_t max_delay_ns;
  size_t room;  // most frames under way for each pair
  size_t max_frame_bytes = 32 << 10;
  int64_t now_ns = 0;
  int64_t ns_per_look = 0;  // how far each call of Receive advances now_ns
  bool must_poll = false;
  horocache::testing::SeededRandom random;
  std::vector<std::deque<std::pair<int64_t, Frame>>> pairs;
  std::vector<int> deaf;  // ranks that receive nothing
  std::vector<int> left;  // ranks that have said goodbye
};

class MemoryLink final : public Link {
 public:
  MemoryLink(MemoryNetwork* network, int rank) : network_(network), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return network_->size; }
  size_t max_frame_bytes() const override { return network_->max_frame_bytes; }
  bool TrySend(int to, std::span<const std::byte> head, std::span<const std::byte> body) override {
    auto& pair = network_->Pair(rank_, to);
    if (pair.size() >= network_->room || !broken_.ok()) return false;
    MemoryNetwork::Frame frame(head.begin(), head.end());
    frame.insert(frame.end(), body.begin(), body.end());
    int64_t due_ns = network_->now_ns +
                     static_cast<int64_t>(network_->random.Below(static_cast<uint64_t>(network_->max_delay_ns) + 1));
    if (!pair.empty()) due_ns = std::max(due_ns, pair.back().first);
    pair.emplace_back(due_ns, std::move(frame));
    return true;
  }
  bool Receive(const Sink& sink) override {
    network_->now_ns += network_->ns_per_look;
    if (std::ranges::find(network_->deaf, rank_) != network_->deaf.end()) return false;
    bool moved = false;
    for (int from = 0; from < size(); ++from) {
      auto& pair = network_->Pair(from, rank_);
      if (pair.empty() || pair.front().first > network_->now_ns) continue;
      const MemoryNetwork::Frame frame = std::move(pair.front().second);
      pair.pop_front();
      sink(from, frame);
      moved = true;
    }
    return moved;
  }
  bool must_poll() const override { return network_->must_poll; }
  const Status& broken() const override { return broken_; }
  void SayGoodbye() override {
    said_goodbye = true;
    network_->left.push_back(rank_);
  }
  bool HasLeft(int peer) const override {
    return std::ranges::find(network_->left, peer) != network_->left.end() && network_->Pair(peer, rank_).empty();
  }
  void Break(Status why) { broken_ = std::move(why); }

  bool said_goodbye = false;

 private:
  MemoryNetwork* const network_;
  const int rank_;
  Status broken_;
};

}  // namespace horocache::net
