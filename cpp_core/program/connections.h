// Messages of a program between ranks: first in, first out, with a few slots per connection.
//
// Outbound and inbound connections are numbered by the strands of this rank that have them. Nothing here blocks.
//
// Role: that of the lane which runs the program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace horocache::program {

class Connections {
 public:
  virtual ~Connections() = default;
  // Memory for the next message of `strand`, of slot_bytes() bytes; null if all slots are full. The same until Push.
  virtual std::byte* Claim(int strand) = 0;
  // Sends the claimed slot.
  virtual void Push(int strand, int64_t bytes) = 0;
  // The next message for `strand`, of so many bytes; null if it is not there yet. Stays until Pop.
  virtual const std::byte* Peek(int strand, int64_t bytes) = 0;
  // Where to read it, which ends with Pop, soon: nothing is waited for in between.
  virtual const std::byte* Take(int strand, const std::byte* peeked) {
    static_cast<void>(strand);
    return peeked;
  }
  virtual void Pop(int strand) = 0;
  // Whether what is written for this strand's receiver goes past the caches: another processor reads it next.
  virtual bool streams(int strand) const {
    static_cast<void>(strand);
    return true;
  }

  // Note [Direct messages]
  // A message whose source the receiver can reach stays where it is, and the slot says where. The sender goes on;
  // before it writes there again it takes the message back into the slot, if nobody has begun to read it. Whoever has
  // begun ends soon, for reading waits for nothing. So a direct message is never waited for by who could be waited for.

  // Whether the strand's receiver can read this memory of this rank.
  virtual bool Reaches(int strand, const std::byte* memory, int64_t bytes) const {
    static_cast<void>(strand), static_cast<void>(memory);
    return bytes < 0;
  }
  // As Push of the claimed slot, but the message is at `memory`.
  virtual void PushFrom(int strand, const std::byte* memory) { static_cast<void>(strand), static_cast<void>(memory); }
  // Messages of the strand that were popped.
  virtual uint64_t Popped(int strand) {
    static_cast<void>(strand);
    return 0;
  }
  // True if message number `message` of the strand is not, or no longer, read at `memory`.
  virtual bool Retract(int strand, uint64_t message, const std::byte* memory, int64_t bytes) {
    return static_cast<void>(strand), static_cast<void>(message), memory != nullptr && bytes >= 0;
  }
};

}  // namespace horocache::program
