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
  virtual void Pop(int strand) = 0;
};

}  // namespace horocache::program
