// Start-up: who the ranks of the job are, on which hosts, and what connects them.
//
// Ranks of one host meet on a Unix socket and share memory. Where MPI is used, all ranks meet over it first: its ranks
// are the job's, and it tells which of them share a host. See docs/decisions/0008-mpi-by-dlopen.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/knobs.h"
#include "base/status.h"
#include "net/bootstrap.h"
#include "net/hosts_watch.h"
#include "net/identity.h"
#include "net/mpi/clock.h"
#include "net/mpi/communicator.h"
#include "net/mpi/meeting.h"
#include "runtime/make_set.h"
#include "runtime/process_sets.h"

namespace horocache::runtime {

struct JobConfig {
  const Knobs& knobs;
  net::Identity identity;  // as the launcher's variables say
  uint32_t epoch = 0;
  std::string version;
  std::string agree;          // lines "name=value" that must be equal on all ranks, besides the knobs
  uint64_t communicator = 0;  // an MPI communicator of the program, whose ranks are the job's; 0: none
  std::vector<int> ranks;     // the job is these ranks of what it would be otherwise; empty: all
  const program::Library* programs = nullptr;
  std::function<Status()> check = nullptr;  // see net::BootstrapConfig and net::WaitCheck
};

struct Job {
  net::Identity identity;
  std::vector<int> host_of;             // by rank; hosts are numbered in the order of their first rank
  std::vector<std::string> host_names;  // by host
  std::vector<int> here;                // the ranks of this host, ascending: by local rank
  net::Peers peers;                     // by local rank
  net::Communicator mpi;                // of the job's ranks; empty where MPI is not used
  net::Introduction introduction;       // of this rank, over MPI
  std::string no_mpi;       // why the launcher's MPI is not used, and is not needed; empty: it is, or there is none
  std::string doubt;        // why this rank may be wrong about being alone; empty: it is not
  net::ClockOffset clock;   // of this host; see CompareClocks
  Status failed_elsewhere;  // why the job does not start, if another rank has told this one over MPI
  // Tells this job from those that the same processes had before. Over MPI a new name and new communicators do that,
  // and processes may have been in different numbers of jobs.
  uint32_t epoch = 0;

  bool one_host() const { return host_names.size() <= 1; }
  // "rank 2 (host b)"; the host only where there are several.
  std::string NameOf(int rank) const;
  std::vector<std::string> Names() const;  // by rank
};

// The layout of the memory that so many ranks share.
net::ArenaLayout LayoutFor(const Knobs& knobs, int ranks);

StatusOr<Job> AssembleJob(const JobConfig& config);

// Tells the ranks of this host, through shared memory, why this rank cannot go on.
void TellHere(const Job& job, const Status& why);
// What others are told of this rank when its start has failed.
std::string NotStarted(const Job& job, const Status& why);
// Tells other ranks over MPI why this rank's start has failed: the first rank of each other host, which passes it on
// through its host's shared memory; and all ranks of this host while they do not share memory yet. Only the first rank
// of a host to fail calls it.
void TellFailure(const Job& job, const Status& why);
// Why the start of another rank has failed, if it has told this one.
Status HearFailure(Job* job);

// Compares the clocks of the hosts, over MPI. All ranks call it at the same time, when those of each host have met.
Status CompareClocks(const JobConfig& config, Job* job);

// A job of runtimes in one process, which share `arena`.
Job JobInProcess(const net::Identity& identity, std::shared_ptr<net::Arena> arena);

// Between all ranks of a job on several hosts, for messages; null on one host. All ranks call it at the same time.
StatusOr<std::unique_ptr<net::Link>> LinkAll(const JobConfig& config, const Job& job);

// What tells this host of the others' ranks; null on one host. All ranks call it at the same time.
StatusOr<std::unique_ptr<net::HostsWatch>> WatchHosts(const JobConfig& config, const Job& job);

// Where the ranks of a process set meet: those of each host among themselves. Its members call this at the same time,
// for one set after the other in ascending order. This avoids circles: no rank of the lowest incomplete set can wait in
// a higher one. `arena` is the set's memory, if it exists already.
StatusOr<SetSite> MeetInSet(const JobConfig& config, const Job& job, const ProcessSets& sets, uint32_t number,
                            std::shared_ptr<net::Arena> arena = nullptr);
// Connects its hosts, over MPI. All members call it, sets in the same order. kStartup names one that does not come.
Status ConnectSet(const JobConfig& config, const Job& job, SetSite* site);

}  // namespace horocache::runtime
