// Frames between any two members of a group of processes: reliable, bounded in size, in order for each pair.
//
// No call blocks. If a frame has no room, the caller keeps it and tries again, so memory stays bounded even if a peer
// stops. A receiver takes every frame that has arrived, whether or not an operation waits for it, so senders always
// find room again.
//
// Threads: only the thread that holds the progress lock.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "base/status.h"

namespace horocache::net {

class Link {
 public:
  // The frame's memory is valid only during the call.
  using Sink = std::function<void(int from, std::span<const std::byte> frame)>;

  virtual ~Link() = default;

  virtual int rank() const = 0;  // within the group
  virtual int size() const = 0;
  virtual size_t max_frame_bytes() const = 0;

  // Sends `head` and `body` as one frame; the caller may reuse both when it returns. False if there is not enough room
  // now.
  virtual bool TrySend(int to, std::span<const std::byte> head, std::span<const std::byte> body) = 0;
  // Passes frames that have arrived to `sink`, a bounded number per call; true if anything moved.
  virtual bool Receive(const Sink& sink) = 0;
  // True if arrivals do not ring the doorbell, so the caller must call Receive from time to time.
  virtual bool must_poll() const = 0;
  // True if a frame that was sent moves only while Receive is called.
  virtual bool sending() const { return false; }
  // Not ok once a peer is lost or has written something invalid; names both ends.
  virtual const Status& broken() const = 0;
  // Announces that this end leaves, so that its silence is not taken for a loss. Does not wait.
  virtual void SayGoodbye() {}
  // True if the peer's goodbye has arrived; it follows all other frames of the peer.
  virtual bool HasLeft(int peer) const {
    static_cast<void>(peer);
    return false;
  }
};

}  // namespace horocache::net
