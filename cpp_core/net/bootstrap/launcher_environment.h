// Determines this process's rank and the job's size from the launcher's variables. Pure: the environment is an
// argument.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/knobs.h"
#include "base/status.h"

namespace horocache::net {

struct Identity {
  // A size of 0 means that only MPI knows it; `rank` is then the number that the launcher gave this process.
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  int cross_rank = 0, cross_size = 1;
  std::string job;          // equal on all ranks of the job and on no other job of this user and host; empty: unknown
  std::string source;       // "horocacherun", "torchrun", "srun", "mpiexec", ... or "none", for messages
  std::string names;        // names of the variables with rank and size, for messages
  bool starts_mpi = false;  // true: the launcher gives an MPI library the same numbers
  std::string mpi;          // the MPI that the launcher belongs to, if the variables show it: "Open MPI"
  std::string no_job;       // why `job` is unknown, and what to do; only MPI works without `job`
  // Lines NAME=value, if only an address and a port name the job. Another job may then have the same name: see Note
  // [Jobs that share an address and port] in contenders.h.
  std::vector<std::string> shared_claim = {};
  bool homogeneous = true;  // every host has the same number of ranks
};

// Uses the first launcher that applies: knobs rank/size (set by horocacherun); torchrun (RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT,
// TORCHELASTIC_ERROR_FILE); srun (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NODEID, SLURM_JOB_ID, SLURM_STEP_ID;
// only in a step that srun started, with SLURM_PROCID, and without the variables of an MPI launcher that uses srun for
// its daemons); Open MPI (OMPI_COMM_WORLD_*), jsrun (JSM_NAMESPACE_*), MVAPICH (MV2_COMM_WORLD_*, MVP_COMM_WORLD_*),
// PMI/PMIx; else this process is the only rank. Variables of a launcher that was started inside a rank of horocacherun
// take precedence over horocacherun's.
// kStartup, with the names of the variables, if values are inconsistent, or if variables show that this process is one
// of several but not which one.
StatusOr<Identity> DetectIdentity(const Knobs& knobs, const std::map<std::string, std::string>& environment);

// kStartup if MPI's rank and size differ from the launcher's. A library that does not belong to the launcher starts
// every process as a job of its own: rank 0 of 1. `library`: its path and version, for the message.
Status CheckWorld(const Identity& identity, int rank, int size, const std::string& library);
// A warning if MPI says rank 0 of 1 and the launcher's variables give the number 0 but no size; else empty.
std::string DoubtInWorld(const Identity& identity, int size, const std::string& library);

// The variables that launchers other than horocacherun have set, as text. horocacherun puts this text into
// kOuterLauncher for its ranks. A process whose own text differs was started by another launcher inside a rank.
std::string LauncherVariables(const std::map<std::string, std::string>& environment);
inline constexpr const char* kOuterLauncher = "_HOROCACHE_OUTER_LAUNCHER";

}  // namespace horocache::net
