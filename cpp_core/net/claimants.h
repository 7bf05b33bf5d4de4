// Which processes of this host claim to be ranks of a job, by what /proc shows of them.
//
// Note [One address, two jobs]
// Ranks that were started by hand, or by a launcher without names for its jobs, have nothing in common but MASTER_ADDR
// and MASTER_PORT. Two such jobs with the same address and port are one name, and ranks of both may meet: rank 0 of A
// with rank 1 of B, while the other two have not come yet. So before rank 0 lets such a job begin, it looks for
//   - rivals: processes with the same claim in their environment that run one of the ranks' programs, but are not among
//     the ranks that have come, and in no job yet. Rank 0 waits until they have come too (then two processes claim one
//     rank, which is an error on all of them), or have ended (then they do not count);
//   - strangers: ranks with other programs or arguments that no one process has started. Numbers in arguments may
//   differ,
//     and so may everything if one launcher started all ranks.
// What is then still not certain, because the ranks have several starters or run different things, begins some seconds
// later, and is watched: rank 0 goes on listening for the time that the other ranks of either job may still take, and
// ends the job if a second claimant comes. Containers of one host that share the directory do not meet: processes with
// such a claim meet within a PID namespace.
#pragma once

#include <string>
#include <vector>

namespace horocache::net {

// Of this process: equal for two of them iff they see each other in /proc. Empty where /proc does not tell.
std::string PidNamespace();

struct Claimant {
  int pid = 0;
  int rank = 0;
  std::string command;  // printable
};

// `claim`: lines NAME=value that are in the environment of all claimants; RANK says which rank each claims. `members`:
// the processes that have come.
std::vector<Claimant> FindRivals(const std::vector<std::string>& claim, const std::vector<int>& members);

struct Kinship {
  bool one_starter = false;           // one process has started them all, maybe through a wrapper each
  bool same_command = false;          // but for numbers
  std::vector<std::string> commands;  // by place in `members`, printable; empty where unknown
};
Kinship FindKinship(const std::vector<std::string>& claim, const std::vector<int>& members);

}  // namespace horocache::net
