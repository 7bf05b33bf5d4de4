// Connections between ranks that carry the messages of a program: first in, first out, with a few slots each.
//
// A connection is named by the thread block of this rank that sends or receives on it (`thread_block`). No call blocks.
//
// Threads: the thread that runs the program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace horocache::program {

class Connections {
 public:
  virtual ~Connections() = default;
  // Returns memory for the next message, LinkPlan::slot_bytes long, or null if all slots are full. Returns the same
  // memory until Push.
  virtual std::byte* Claim(int thread_block) = 0;
  // Sends the claimed slot.
  virtual void Push(int thread_block, int64_t bytes) = 0;
  // Returns the next message, which has `bytes` bytes, or null if it has not arrived. The message stays until Pop.
  virtual const std::byte* Peek(int thread_block, int64_t bytes) = 0;
  // Returns the address at which to read the message that Peek returned. The caller pops it soon and waits for nothing
  // in between.
  virtual const std::byte* Take(int thread_block, const std::byte* peeked) {
    static_cast<void>(thread_block);
    return peeked;
  }
  virtual void Pop(int thread_block) = 0;
  // True if messages are written around the caches, because another processor reads them next.
  virtual bool streams(int thread_block) const {
    static_cast<void>(thread_block);
    return true;
  }

  // Note [Direct messages]
  // If the receiver can read the memory of a message's source, the message stays there, and the slot holds its
  // location. The sender goes on. Before it overwrites the source, it takes the message back: it copies it into the
  // slot, unless the receiver has begun to read it. A receiver that has begun finishes soon, because reading waits for
  // nothing. So the sender waits only for ranks that wait for nothing, and direct messages cannot cause a deadlock.

  // True if the receiver can read this memory of this rank.
  virtual bool Reaches(int thread_block, const std::byte* memory, int64_t bytes) const {
    static_cast<void>(thread_block), static_cast<void>(memory);
    return bytes < 0;
  }
  // Sends the message at `memory` directly, in place of the contents of the claimed slot.
  virtual void PushFrom(int thread_block, const std::byte* memory) {
    static_cast<void>(thread_block), static_cast<void>(memory);
  }
  // Returns how many messages of the connection the receiver has popped.
  virtual uint64_t Popped(int thread_block) {
    static_cast<void>(thread_block);
    return 0;
  }
  // Takes message number `message` back from `memory`. Returns true if the receiver does not read it there, now or
  // later.
  virtual bool Retract(int thread_block, uint64_t message, const std::byte* memory, int64_t bytes) {
    return static_cast<void>(thread_block), static_cast<void>(message), memory != nullptr && bytes >= 0;
  }
};

}  // namespace horocache::program
