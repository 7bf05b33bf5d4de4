// A link over MPI: bounded messages, taken in the order in which they arrive.
//
// Note [Watching over MPI]
// MPI does not tell that a peer, or the way to it, is gone: messages simply stay under way. So the two ends of a link
// send each other something at least every third of `silence_ns`, and a peer that has been silent for all of it is
// lost, unless it has said goodbye. Nobody can be woken over MPI: both ends call Receive now and then.
//
// Note [The end of a link]
// A communicator may be freed when nothing is under way on it: its number is used for the next one, which would get
// what is still to come. So each end's last message is its goodbye, and an end that is destroyed takes everything up to
// the others' goodbyes. If one does not come soon, the communicator is left as it is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "net/link.h"
#include "net/mpi/communicator.h"

namespace horocache::net {

struct MpiLinkConfig {
  std::vector<std::string> names;  // of the members, for messages: "rank 2 on host b"
  int64_t silence_ns = 0;          // after which a peer is lost; 0: nobody watches
};

std::unique_ptr<Link> MakeMpiLink(Communicator comm, MpiLinkConfig config);

}  // namespace horocache::net
