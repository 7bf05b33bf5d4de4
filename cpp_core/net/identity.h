// Who this process is in the job, from the launcher's variables. Pure: the environment is an argument.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/knobs.h"
#include "base/status.h"

namespace horocache::net {

struct Identity {
  int rank = 0, size = 1;  // size 0: only MPI knows it; the launcher has given this process the number `rank`
  int local_rank = 0, local_size = 1;
  int cross_rank = 0, cross_size = 1;
  std::string job;          // equal on all ranks of the job and on no other job of this user and host; empty if unknown
  std::string source;       // "horocacherun", "torchrun", "srun", "mpiexec", ... or "none", for messages
  std::string names;        // of the variables that say rank and size, for messages
  bool starts_mpi = false;  // the launcher tells an MPI library the same numbers
  std::string mpi;          // which MPI's launcher it is, where the variables tell: "Open MPI"
  std::string no_job;       // why the job is unknown, and what to do; only MPI can do without
  // Lines NAME=value, if an address and a port alone name the job: another job may have the same. See Note [One
  // address, two jobs] in claimants.h.
  std::vector<std::string> shared_claim = {};
};

// Takes the first that applies: knobs rank/size (set by horocacherun), torchrun (RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT,
// TORCHELASTIC_ERROR_FILE), srun (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NODEID, SLURM_JOB_ID, SLURM_STEP_ID;
// only if SLURM_STEP_ID is there and SLURM_NTASKS > 1 or SLURM_PROCID is set by a step), Open MPI (OMPI_COMM_WORLD_*),
// jsrun (JSM_NAMESPACE_*), MVAPICH (MV2_COMM_WORLD_*, MVP_COMM_WORLD_*), PMI/PMIx; else one rank alone. Variables of a
// launcher that was started inside of a rank of horocacherun come before horocacherun's.
// Inconsistent values are kStartup with the variables named, and so are variables which show that this process is one
// of several, but not which.
StatusOr<Identity> DetectIdentity(const Knobs& knobs, const std::map<std::string, std::string>& environment);

// Whether MPI's world agrees with what the launcher's variables say. A library that does not belong to the launcher
// starts every process as a job of its own: rank 0 of 1. `library`: its path and version, for the message.
Status CheckWorld(const Identity& identity, int rank, int size, const std::string& library);
// Not empty where MPI says rank 0 of 1, and so does its launcher as far as it says anything: that number is 0.
std::string DoubtInWorld(const Identity& identity, int size, const std::string& library);

// What other launchers than horocacherun have set. horocacherun leaves it in kOuterLauncher for its ranks, which
// recognise by a difference that they were started by something within the rank.
std::string LauncherVariables(const std::map<std::string, std::string>& environment);
inline constexpr const char* kOuterLauncher = "_HOROCACHE_OUTER_LAUNCHER";

}  // namespace horocache::net
