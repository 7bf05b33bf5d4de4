// Start-up of a job: finds its ranks and their hosts, and connects them.
//
// The ranks of one host bootstrap over a Unix socket and share memory. Where MPI is used, all ranks first connect over
// MPI: its ranks are the job's ranks, and this exchange finds out which ranks share a host. See
// docs/decisions/0008-mpi-by-dlopen.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/knobs.h"
#include "base/status.h"
#include "net/bootstrap/bootstrap.h"
#include "net/bootstrap/launcher_environment.h"
#include "net/failure/host_monitor.h"
#include "net/mpi/bootstrap.h"
#include "net/mpi/communicator.h"
#include "net/mpi/host_clock.h"
#include "runtime/progress/process_sets.h"
#include "runtime/startup/process_set_factory.h"

namespace horocache::runtime {

struct JobConfig {
  const Knobs& knobs;
  net::Identity identity;  // from the launcher's variables
  uint32_t epoch = 0;      // jobs that this process has joined; failed starts do not count
  std::string version;
  std::string agree;          // lines "name=value" that must be equal on all ranks, besides the knobs
  uint64_t communicator = 0;  // MPI communicator of the program, whose ranks form the job; 0: none
  std::vector<int> ranks;     // the subset of ranks that forms the job; empty: all ranks
  const program::Library* programs = nullptr;
  bool nccl = false;                        // true if all ranks have NCCL, which `agree` compares
  UserBackends users;                       // the backends that the program implements
  std::string tuning;                       // selector rules of a tuning table; rank 0's are used on all ranks
  std::function<Status()> check = nullptr;  // see net::BootstrapConfig and net::WaitCheck
};

struct Job {
  net::Identity identity;
  std::vector<int> host_of;             // host of each rank; hosts are numbered in the order of their first rank
  std::vector<std::string> host_names;  // by host number
  std::vector<int> here;                // ranks of this host, ascending, by local rank
  net::Peers peers;                     // by local rank
  net::Communicator mpi;                // connects the ranks of the job; empty if MPI is not used
  net::Introduction introduction;       // of this rank, sent over MPI
  std::string no_mpi;                   // why the launcher's MPI cannot be used; set only if the job does without MPI
  std::string doubt;                    // why this rank, which runs alone, may belong to a larger job; empty: no doubt
  std::string tuning;                   // rank 0's JobConfig::tuning
  net::ClockOffset clock;               // of this host, see CompareClocks
  Status failed_elsewhere;              // the start failure that another rank has reported over MPI; ok: none
  // Distinguishes this job from earlier jobs of the same processes. 0 with MPI: there a new job name and new
  // communicators do that, and the processes may have taken part in different numbers of jobs.
  uint32_t epoch = 0;

  bool one_host() const { return host_names.size() <= 1; }
  // "rank 2 (host b)"; the host is named only in jobs on several hosts.
  std::string NameOf(int rank) const;
  std::vector<std::string> Names() const;  // by rank
};

// The layout of the memory that `ranks` ranks of one host share.
net::ArenaLayout LayoutFor(const Knobs& knobs, int ranks);

// Connects this rank with the other ranks of the job: over MPI if it is used, and through shared memory within the
// host.
StatusOr<Job> AssembleJob(const JobConfig& config);

// Tells the ranks of this host, through shared memory, why this rank cannot continue.
void PublishFailure(const Job& job, const Status& why);
// Counts a start that failed after the ranks had met as a job that this process has joined, because other ranks may
// have joined it. Without that, the next start would look for the ranks where they met for this one, and could come to
// a rank 0 that has not left yet.
void NoteFailedStart(const Job& job);
// The error text that other ranks show if this rank's start fails.
std::string NotStarted(const Job& job, const Status& why);
// Tells other ranks over MPI why this rank's start has failed: the first rank of each other host, which passes it on
// through its host's shared memory, and the ranks of this host while they do not share memory yet. Once the ranks of a
// host share memory, only the first rank to fail calls this.
void SendFailure(const Job& job, const Status& why);
// Returns the start failure that another rank has reported to this one; ok: none.
Status PollFailure(Job* job);

// Compares the clocks of the hosts over MPI. All ranks call it at the same time, after the bootstrap of each host.
Status CompareClocks(const JobConfig& config, Job* job);

// Returns a job whose ranks are runtimes of one process that share `arena`.
Job JobInProcess(const net::Identity& identity, std::shared_ptr<net::Arena> arena);

// Makes the link between all ranks of a job on several hosts, for messages; null on one host. All ranks call it at the
// same time.
StatusOr<std::unique_ptr<net::Link>> LinkAll(const JobConfig& config, const Job& job);

// Makes the monitor that reports lost and stopped ranks of other hosts; null on one host. All ranks call it at the same
// time.
StatusOr<std::unique_ptr<net::HostMonitor>> MakeHostMonitor(const JobConfig& config, const Job& job);

// Bootstraps a process set: the members on each host connect with each other. All members call this at the same time,
// and ranks call it for their sets one after the other in ascending order. That order prevents circular waits: no rank
// of the lowest incomplete set can wait in a higher one. `arena` is the set's shared memory if it exists already.
StatusOr<SetMembership> ConnectOnHost(const JobConfig& config, const Job& job, const ProcessSets& sets, uint32_t number,
                                      std::shared_ptr<net::Arena> arena = nullptr);
// Makes the set's MPI communicators and the link between its hosts; does nothing without MPI. All members call it, for
// all sets in the same order. Returns kStartup, naming the rank, if a member does not join in time.
Status ConnectHosts(const JobConfig& config, const Job& job, SetMembership* membership);

}  // namespace horocache::runtime
