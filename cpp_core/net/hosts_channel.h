// The control channel of a process set whose ranks are on several hosts: shared memory inside a host, and a link
// between the hosts' leaders, each the lowest rank of its host.
//
// Words stay on their host, so only agreements that send frames between hosts run over it (leaders, coordinator, tree).
// A frame from one host to another goes to its host's leader, over the link, and from there to its rank.
//
// Role: coordinator. Owns the host's channel and, on leaders, the link.
#pragma once

#include <memory>
#include <vector>

#include "net/hosts_watch.h"
#include "net/link.h"
#include "net/shm_channel.h"

namespace horocache::net {

struct HostsConfig {
  int rank = 0;
  std::vector<int> host_of;           // by rank; hosts are numbered in the order of their first rank
  std::vector<int> ranks = {};        // of the job, ascending, by rank
  const HostsWatch* watch = nullptr;  // of the job; outlives the channel
};

// `local` connects the ranks of this host, in their order; `link` the leaders, by number of host: null on other ranks.
std::unique_ptr<RuntimeChannel> MakeHostsChannel(HostsConfig config, std::unique_ptr<RuntimeChannel> local,
                                                 std::unique_ptr<Link> link);

}  // namespace horocache::net
