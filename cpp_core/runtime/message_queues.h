// Which receive gets which message: the first posted gets the first that arrived, for each source, process set and tag.
//
// For one key either receives wait for messages or messages for receives, never both. Pure: no clock, no I/O.
//
// Role: the holder of the runtime's role. Owns what arrived; the operations belong to the table.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "runtime/operation.h"

namespace horocache::runtime {

struct MessageKey {
  int source = 0;
  uint32_t process_set = 0;
  int32_t tag = 0;
  auto operator<=>(const MessageKey&) const = default;
};

// A message that nobody has asked for yet.
struct Arrival {
  enum class Kind { kWhole, kAnnounced, kLost };  // kLost: was announced, and its sender has left
  Kind kind = Kind::kWhole;
  DType dtype = DType::kFloat32;
  int64_t count = 0;
  uint64_t id = 0;                 // if announced
  std::vector<std::byte> payload;  // if whole
};

class MessageQueues {
 public:
  // Only where TakeArrival has nothing for the key.
  void Post(const MessageKey& key, Operation* receive);
  // The first posted receive, which is no longer posted then; null if there is none.
  Operation* TakePosted(const MessageKey& key);
  // Takes a receive back; false if it is not posted.
  bool Withdraw(const MessageKey& key, const Operation* receive);

  // Only where TakePosted has nothing for the key.
  void Keep(const MessageKey& key, Arrival arrival);
  std::optional<Arrival> TakeArrival(const MessageKey& key);

  // The source has left. What it had announced is lost; whole messages stay. Appends the receives that waited for it,
  // which are no longer posted then.
  void Close(int source, std::vector<Operation*>* receives);
  void Clear() { queues_.clear(); }
  // Forgets what came for a process set that is gone; calls f(source, bytes) for every whole message.
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

  // Empty queues stay, so that a tag that is used in every step costs no allocation; swept when there are many.
  std::map<MessageKey, Queue> queues_;
  size_t sweep_at_ = 1024;
};

}  // namespace horocache::runtime
