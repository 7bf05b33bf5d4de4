#include "program/simulated_links.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace horocache::program {

Delays::Delays(DelayModel model, const Wirings& wirings, int slots)
    : model_(std::move(model)),
      ranks_(static_cast<int>(wirings.ranks.size())),
      ends_(std::max(1, wirings.most_ends)),
      slots_(slots),
      free_ns_(model_.ports.size()),
      arrival_ns_(static_cast<size_t>(ranks_) * static_cast<size_t>(ends_ * slots_)) {}

int64_t Delays::Send(int from, int to, int64_t bytes, int64_t now_ns) {
  const int port = model_.port_of.empty() ? -1 : model_.port_of[static_cast<size_t>(from * ranks_ + to)];
  if (port < 0) return now_ns;
  const PortModel& model = model_.ports[static_cast<size_t>(port)];
  std::atomic<int64_t>& free_ns = free_ns_[static_cast<size_t>(port)];
  const auto takes_ns = static_cast<int64_t>(static_cast<double>(bytes) * model.ns_per_byte + model.gap_ns);
  int64_t free = free_ns.load();
  int64_t passed = std::max(free, now_ns) + takes_ns;
  while (!free_ns.compare_exchange_weak(free, passed)) passed = std::max(free, now_ns) + takes_ns;
  return passed + static_cast<int64_t>(model.latency_ns - model.gap_ns);
}

std::atomic<int64_t>& Delays::arrival(int from, int end, uint64_t message) {
  const auto slot = static_cast<size_t>(message % static_cast<uint64_t>(slots_));
  return arrival_ns_[static_cast<size_t>((from * ends_ + end) * slots_) + slot];
}

DelayedLinks::DelayedLinks(Connections* links, Delays* delays, const Wiring* wiring, int rank)
    : links_(*links),
      delays_(*delays),
      wiring_(*wiring),
      rank_(rank),
      pushed_(static_cast<size_t>(wiring_.num_out)),
      popped_(static_cast<size_t>(wiring_.num_in)) {}

void DelayedLinks::Push(int thread_block, int64_t bytes) {
  const Endpoint& end = wiring_.out[static_cast<size_t>(thread_block)];
  uint64_t& pushed = pushed_[static_cast<size_t>(end.here)];
  delays_.arrival(rank_, end.here, pushed++).store(delays_.Send(rank_, end.peer, bytes, NowNs()));
  links_.Push(thread_block, bytes);
}

const std::byte* DelayedLinks::Peek(int thread_block, int64_t bytes) {
  const std::byte* const message = links_.Peek(thread_block, bytes);
  if (message == nullptr) return nullptr;
  const Endpoint& end = wiring_.in[static_cast<size_t>(thread_block)];
  const uint64_t popped = popped_[static_cast<size_t>(end.here)];
  return delays_.arrival(end.peer, end.there, popped).load() <= NowNs() ? message : nullptr;
}

void DelayedLinks::Pop(int thread_block) {
  ++popped_[static_cast<size_t>(wiring_.in[static_cast<size_t>(thread_block)].here)];
  links_.Pop(thread_block);
}

}  // namespace horocache::program
