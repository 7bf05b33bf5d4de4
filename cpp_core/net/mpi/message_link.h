// A link over MPI: bounded messages, handed over in the order in which they arrive.
//
// MPI cannot wake the receiver of a message, so both ends call Receive now and then. MPI does not report either that a
// peer, or the way to it, is gone: see Note [Peer monitoring between hosts] in host_monitor.h.
//
// Note [Closing an MPI link]
// A communicator may be freed when nothing is under way on it: MPI gives its number to the next communicator, which
// would get the messages that are still to come. So the last message of each end is its goodbye, and an end that is
// destroyed first takes all messages up to the others' goodbyes. If a goodbye does not come soon, the communicator is
// abandoned, that is, not freed. All links of a job say goodbye together, so they all wait for the same second, however
// many they are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "net/message_link.h"
#include "net/mpi/communicator.h"

namespace horocache::net {

// `names`: the members' names in messages, such as "rank 2 (host b)".
std::unique_ptr<Link> MakeMpiLink(Communicator comm, std::vector<std::string> names);

}  // namespace horocache::net
