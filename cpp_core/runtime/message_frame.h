// What point-to-point messages look like on a Link: a head of fixed size, then payload where the kind has any.
//
// Heads are in the host's byte order, which the handshake compares. A receiver copies a head out of the link's memory
// before it looks at it: a peer may go on writing there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace horocache::runtime {

enum class FrameKind : uint8_t {
  kEager = 1,  // a whole message
  kAnnounce,   // a message waits at its sender for a grant
  kGrant,      // from the receiver: a matching recv is there, and what it expects
  kData,       // the next piece of a message that was granted
  kRefuse,     // the message that was granted, or announced, will not come (any more)
  kCredit,     // nothing but the credit that every head carries
  kFarewell,   // the sender has left; nothing follows
};

struct FrameHead {
  FrameKind kind = FrameKind::kCredit;
  uint8_t dtype = 0;
  uint16_t unused = 0;
  uint32_t credit = 0;  // bytes for eager messages that the frame's receiver may use again
  uint32_t process_set = 0;
  int32_t tag = 0;
  uint64_t id = 0;    // of the message; its sender's
  int64_t count = 0;  // elements: of the message, or in a grant those that the receiver expects
};
static_assert(sizeof(FrameHead) == 32);

}  // namespace horocache::runtime
