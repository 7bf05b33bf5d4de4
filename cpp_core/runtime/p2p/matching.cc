#include "runtime/p2p/matching.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace horocache::runtime {

MessageQueues::Queue& MessageQueues::At(const MessageKey& key) {
  if (queues_.size() >= sweep_at_ && !queues_.contains(key)) {
    std::erase_if(queues_, [](const auto& entry) { return entry.second.empty(); });
    sweep_at_ = std::max<size_t>(1024, 2 * queues_.size());
  }
  return queues_[key];
}

void MessageQueues::Post(const MessageKey& key, Operation* receive) { At(key).posted.push_back(receive); }

Operation* MessageQueues::TakePosted(const MessageKey& key) {
  const auto found = queues_.find(key);
  if (found == queues_.end() || found->second.posted.empty()) return nullptr;
  Operation* receive = found->second.posted.front();
  found->second.posted.pop_front();
  return receive;
}

bool MessageQueues::Withdraw(const MessageKey& key, const Operation* receive) {
  const auto found = queues_.find(key);
  return found != queues_.end() && std::erase(found->second.posted, receive) != 0;
}

void MessageQueues::Keep(const MessageKey& key, Arrival arrival) { At(key).arrived.push_back(std::move(arrival)); }

std::optional<Arrival> MessageQueues::TakeArrival(const MessageKey& key) {
  const auto found = queues_.find(key);
  if (found == queues_.end() || found->second.arrived.empty()) return std::nullopt;
  Arrival arrival = std::move(found->second.arrived.front());
  found->second.arrived.pop_front();
  return arrival;
}

void MessageQueues::Close(int source, std::vector<Operation*>* receives) {
  const MessageKey first{source, 0, std::numeric_limits<int32_t>::min()};
  for (auto it = queues_.lower_bound(first); it != queues_.end() && it->first.source == source; ++it) {
    std::deque<Operation*>& posted = it->second.posted;
    receives->insert(receives->end(), posted.begin(), posted.end());
    posted.clear();
    for (Arrival& arrival : it->second.arrived) {
      if (arrival.kind == Arrival::Kind::kAnnounced) arrival.kind = Arrival::Kind::kLost;
    }
  }
}

}  // namespace horocache::runtime
