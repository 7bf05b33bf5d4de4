// A link over MPI: bounded messages, taken in the order in which they arrive.
//
// Nobody can be woken over MPI: both ends call Receive now and then. Nor does it tell that a peer, or the way to it, is
// gone: see Note [Watching between hosts] in hosts_watch.h.
//
// Note [The end of a link]
// A communicator may be freed when nothing is under way on it: its number is used for the next one, which would get
// what is still to come. So each end's last message is its goodbye, and an end that is destroyed takes everything up to
// the others' goodbyes. If one does not come soon, the communicator is left as it is. All links of a job say goodbye
// together and wait for the same second, however many they are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "net/link.h"
#include "net/mpi/communicator.h"

namespace horocache::net {

// `names`: of the members, for messages: "rank 2 (host b)".
std::unique_ptr<Link> MakeMpiLink(Communicator comm, std::vector<std::string> names);

}  // namespace horocache::net
