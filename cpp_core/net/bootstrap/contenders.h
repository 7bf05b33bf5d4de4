// Finds the processes of this host that claim to be ranks of a job, by reading /proc.
//
// Note [Jobs that share an address and port]
// Ranks that were started by hand, or by a launcher without names for its jobs, share only MASTER_ADDR and MASTER_PORT.
// Two such jobs with the same address and port have the same name, so their ranks may mix: rank 0 of job A may find
// rank 1 of job B while the other two ranks have not started yet. Before rank 0 lets such a job begin, it therefore
// looks for
//   - rivals: processes that have the same claim in their environment and run one of the ranks' programs, but have not
//     connected and are not in a job yet. Rank 0 waits until they have connected (then two processes claim one rank,
//     which is an error on all of them) or have ended (then they do not count);
//   - strangers: ranks that run different commands and were started by different processes. They are an error. Numbers
//     in the arguments may differ. If one launcher started all ranks, everything may differ.
// If the ranks have several starters or run different commands, but not both, the job begins some seconds later. Rank 0
// then keeps listening for as long as ranks of the other job may still start, and ends the job if a second process
// claims a rank. Containers of one host that share the directory do not mix: the name of the start-up socket of such a
// job includes the PID namespace.
#pragma once

#include <string>
#include <vector>

namespace horocache::net {

// The PID namespace of this process: equal for two processes iff they see each other in /proc. Empty if /proc does not
// show it.
std::string PidNamespace();

// A process whose environment claims a rank.
struct Contender {
  int pid = 0;
  int rank = 0;
  std::string command;  // printable, cut for messages
};

// The rivals of `members`, the pids of the processes that have connected. Descendants of members and of other claimants
// do not count. `claim`: lines NAME=value that every claimant has in its environment, where RANK is the rank that it
// claims.
std::vector<Contender> FindContenders(const std::vector<std::string>& claim, const std::vector<int>& members);

// Properties that the members share.
struct CommonOrigin {
  bool one_starter = false;           // one process started them all, possibly with a wrapper for each
  bool same_command = false;          // except for numbers
  std::vector<std::string> commands;  // by index in `members`, printable; empty: unknown
};
CommonOrigin FindKinship(const std::vector<std::string>& claim, const std::vector<int>& members);

}  // namespace horocache::net
