// The control channel of a process set with ranks on several hosts: shared memory inside a host, and a link between the
// hosts' leaders. A leader is the lowest rank of its host.
//
// Bitvectors stay on their host, so only agreements that send frames between hosts (leaders, coordinator, tree) run
// over this channel. A frame to another host goes to the leader of the sender's host, over the link to the other
// leader, and from there to its rank.
//
// Threads: only the thread that holds the progress lock. Owns the host's channel and, on leaders, the link.
#pragma once

#include <memory>
#include <vector>

#include "net/failure/host_monitor.h"
#include "net/message_link.h"
#include "net/shm/control_channel.h"

namespace horocache::net {

struct HostsConfig {
  int rank = 0;
  std::vector<int> host_of;                   // by rank; hosts are numbered in the order of their lowest ranks
  std::vector<int> ranks = {};                // by rank: its rank in the job; ascending
  const HostMonitor* host_monitor = nullptr;  // of the job; outlives the channel; may be null
};

// `local` connects the ranks of this host, in ascending order. `link` connects the leaders, by number of host; it is
// null on other ranks.
std::unique_ptr<RuntimeChannel> MakeHostsChannel(HostsConfig config, std::unique_ptr<RuntimeChannel> local,
                                                 std::unique_ptr<Link> link);

}  // namespace horocache::net
