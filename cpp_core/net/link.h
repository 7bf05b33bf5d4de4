// Frames between any two members of a group of processes: reliable, bounded in size, in order for each pair.
//
// Nothing blocks. What is sent may wait for room: the caller keeps it and tries again, so memory is bounded whatever a
// peer does. A receiver takes every frame that has arrived, whether anybody waits for it or not, so senders always find
// room again.
//
// Role: one thread at a time, the holder of the runtime's role.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "base/status.h"

namespace horocache::net {

class Link {
 public:
  // The frame's memory is valid during the call.
  using Sink = std::function<void(int from, std::span<const std::byte> frame)>;

  virtual ~Link() = default;

  virtual int rank() const = 0;  // within the group
  virtual int size() const = 0;
  virtual size_t max_frame_bytes() const = 0;

  // Sends `head` and `body` as one frame; both are free again when it returns. False if there is no room now.
  virtual bool TrySend(int to, std::span<const std::byte> head, std::span<const std::byte> body) = 0;
  // Hands over what has arrived, by a bounded amount; true if anything moved.
  virtual bool Receive(const Sink& sink) = 0;
  // Whether an arrival wakes nobody, so that Receive has to be called now and then.
  virtual bool must_poll() const = 0;
  // Whether something that was sent moves only while Receive is called.
  virtual bool sending() const { return false; }
  // Not ok once a peer is lost or has written what no peer may write; names both ends.
  virtual const Status& broken() const = 0;
  // This end leaves: its silence from now on is no loss. Waits for nothing.
  virtual void SayGoodbye() {}
  // Whether the peer's goodbye has come, after everything else from it.
  virtual bool HasLeft(int peer) const {
    static_cast<void>(peer);
    return false;
  }
};

}  // namespace horocache::net
