// The format of point-to-point messages on a Link: a head of fixed size, followed by the payload in some kinds of
// frame.
//
// Heads are in the host's byte order, which the handshake compares. A receiver copies a head out of the link's memory
// before it checks it, because the peer may still write there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace horocache::runtime {

enum class FrameKind : uint8_t {
  kEager = 1,  // a whole message
  kAnnounce,   // from the sender: a message waits for a grant
  kGrant,      // from the receiver: a matching recv is posted, and what it expects
  kData,       // the next piece of a granted message
  kRefuse,     // from the sender: it has given up a message that the receiver granted
  kCredit,     // carries only the credit that every head has
  kFarewell,   // the sender has left; nothing follows
};

struct FrameHead {
  FrameKind kind = FrameKind::kCredit;
  uint8_t dtype = 0;
  uint16_t unused = 0;
  uint32_t credit = 0;  // bytes of eager credit given back to the frame's receiver
  uint32_t process_set = 0;
  int32_t tag = 0;
  uint64_t id = 0;    // of the message; chosen by its sender
  int64_t count = 0;  // elements of the message; in a grant, elements that the receiver expects
};
static_assert(sizeof(FrameHead) == 32);

}  // namespace horocache::runtime
