// Matches receives with messages: for each source, process set and tag, the first posted receive gets the first message
// that arrived.
//
// For one key, either receives wait for messages or messages wait for receives, never both. Pure: no clock, no I/O.
//
// Threads: the driving thread. Owns the arrived messages; the operation table owns the operations.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "runtime/submission/operation.h"

namespace horocache::runtime {

struct MessageKey {
  int source = 0;
  uint32_t process_set = 0;
  int32_t tag = 0;
  auto operator<=>(const MessageKey&) const = default;
};

// A message without a matching receive so far.
struct Arrival {
  enum class Kind { kWhole, kAnnounced, kLost };  // kLost: was announced, then its sender left
  Kind kind = Kind::kWhole;
  DType dtype = DType::kFloat32;
  int64_t count = 0;
  uint64_t id = 0;                 // of an announced message
  std::vector<std::byte> payload;  // of a whole message
};

class MessageQueues {
 public:
  // Requires that TakeArrival has returned nothing for the key.
  void Post(const MessageKey& key, Operation* receive);
  // Removes and returns the first posted receive; null if there is none.
  Operation* TakePosted(const MessageKey& key);
  // Removes a posted receive; false if it is not posted.
  bool Withdraw(const MessageKey& key, const Operation* receive);

  // Requires that TakePosted has returned null for the key.
  void Keep(const MessageKey& key, Arrival arrival);
  std::optional<Arrival> TakeArrival(const MessageKey& key);

  // Handles a source that has left: its announced messages become lost, whole messages stay, and the receives posted
  // for it are removed and appended to *receives.
  void Close(int source, std::vector<Operation*>* receives);
  void Clear() { queues_.clear(); }
  // Drops the messages that arrived for a removed process set. Calls f(source, bytes) for every whole message.
  template <typename F>
  void DropArrivals(uint32_t process_set, F&& f) {
    for (auto& [key, queue] : queues_) {
      if (key.process_set != process_set) continue;
      for (const Arrival& arrival : queue.arrived) {
        if (arrival.kind == Arrival::Kind::kWhole) f(key.source, arrival.payload.size());
      }
      queue.arrived.clear();
    }
  }

  // Calls f(key, receive) for every posted receive.
  template <typename F>
  void ForEachPosted(F&& f) const {
    for (const auto& [key, queue] : queues_) {
      for (Operation* receive : queue.posted) f(key, receive);
    }
  }

 private:
  struct Queue {
    std::deque<Operation*> posted;
    std::deque<Arrival> arrived;
    bool empty() const { return posted.empty() && arrived.empty(); }
  };

  Queue& At(const MessageKey& key);

  // Empty queues stay in the map, so that a tag used in every step costs no allocation. At `sweep_at_` keys, the empty
  // ones are removed.
  std::map<MessageKey, Queue> queues_;
  size_t sweep_at_ = 1024;
};

}  // namespace horocache::runtime
