#include "net/bootstrap/launcher_environment.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"

namespace horocache::net {
namespace {

using Environment = std::map<std::string, std::string>;

constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kUnset = -1;

std::string Text(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

bool Has(const Environment& environment, const std::string& name) { return environment.contains(name); }

// Reads variables by name and keeps the first error, so that a launcher's block of reads needs one check.
class Reader {
 public:
  Reader(const Environment& environment, std::string launcher)
      : environment_(environment), launcher_(std::move(launcher)) {}

  int64_t Required(const std::string& name) {
    if (!Has(environment_, name)) {
      Fail("started by " + launcher_ + ", but " + name + " is not set; start every rank with " + launcher_ +
           ", or unset its other variables");
      return 0;
    }
    return Optional(name, 0);
  }

  int64_t Optional(const std::string& name, int64_t otherwise) {
    const auto found = environment_.find(name);
    if (found == environment_.end()) return otherwise;
    const std::string& text = found->second;
    int64_t value = 0;
    if (ParseNumber(text, &value) && value >= 0 && value <= kMaxRanks) return value;
    Fail(name + " is '" + Printable(text) + "'; a number from 0 to " + std::to_string(kMaxRanks) +
         " was expected from " + launcher_);
    return otherwise;
  }

  void Fail(const std::string& text) {
    if (status_.ok()) status_ = StartupError(text);
  }

  const Status& status() const { return status_; }

 private:
  const Environment& environment_;
  const std::string launcher_;
  Status status_;
};

// The numbers that a launcher gave (kUnset: none), and the variable names for error messages.
struct Claim {
  std::string source, job, job_hint;
  bool starts_mpi = false;
  std::string mpi;
  int64_t rank = kUnset, size = kUnset;
  int64_t local_rank = kUnset, local_size = kUnset;
  int64_t cross_rank = kUnset, cross_size = kUnset;
  std::vector<std::string> shared_claim;
  std::string rank_names, local_names, cross_names;  // "RANK and WORLD_SIZE"
};

// Derives the missing numbers. A launcher that gives no hosts has one. If it gives local sizes but no hosts, its ranks
// are taken to be placed in blocks.
void Complete(Claim* claim) {
  if (claim->local_size == kUnset) claim->local_size = claim->cross_size > 1 ? 1 : claim->size;
  if (claim->local_rank == kUnset) claim->local_rank = claim->local_size == claim->size ? claim->rank : 0;
  const int64_t local = claim->local_size > 0 ? claim->local_size : 1;
  if (claim->cross_size == kUnset) claim->cross_size = (claim->size + local - 1) / local;
  if (claim->cross_rank == kUnset) claim->cross_rank = claim->cross_size == 1 ? 0 : claim->rank / local;
}

Status CheckPair(const std::string& names, int64_t number, int64_t count, int64_t most) {
  if (count >= 1 && count <= most && number >= 0 && number < count) return Status::Ok();
  return StartupError(names + " are " + std::to_string(number) + " and " + std::to_string(count) +
                      ": the first must be at least 0 and less than the second, which may be at most " +
                      std::to_string(most));
}

StatusOr<Identity> Finish(Claim claim) {
  HC_RETURN_IF_ERROR(CheckPair(claim.rank_names, claim.rank, claim.size, kMaxRanks));
  Complete(&claim);
  HC_RETURN_IF_ERROR(CheckPair(claim.local_names, claim.local_rank, claim.local_size, claim.size));
  HC_RETURN_IF_ERROR(CheckPair(claim.cross_names, claim.cross_rank, claim.cross_size, claim.size));
  if ((claim.cross_size == 1) != (claim.local_size == claim.size)) {
    return StartupError(claim.rank_names + " say that the job has " + std::to_string(claim.size) + " ranks, " +
                        claim.local_names + " that this host has " + std::to_string(claim.local_size) + ", " +
                        claim.cross_names + " that there are " + std::to_string(claim.cross_size) +
                        " hosts; these do not fit together");
  }
  Identity identity;
  identity.rank = static_cast<int>(claim.rank);
  identity.size = static_cast<int>(claim.size);
  identity.local_rank = static_cast<int>(claim.local_rank);
  identity.local_size = static_cast<int>(claim.local_size);
  identity.cross_rank = static_cast<int>(claim.cross_rank);
  identity.cross_size = static_cast<int>(claim.cross_size);
  if (!claim.job.empty()) {
    identity.job = claim.source + ":" + claim.job;
  } else if (claim.size == 1) {
    identity.job = "alone";
  } else {
    identity.no_job = claim.job_hint;
  }
  identity.source = claim.source;
  identity.names = claim.rank_names;
  identity.starts_mpi = claim.starts_mpi;
  identity.mpi = claim.mpi;
  identity.shared_claim = claim.shared_claim;
  return identity;
}

StatusOr<Identity> FromKnobs(const Knobs& knobs, const Environment& environment) {
  // Messages name the variables by the prefix that the user has set.
  const std::string prefix = !Has(environment, "HOROCACHE_RANK") && !Has(environment, "HOROCACHE_SIZE") &&
                                     (Has(environment, "HOROVOD_RANK") || Has(environment, "HOROVOD_SIZE"))
                                 ? "HOROVOD_"
                                 : "HOROCACHE_";
  if (knobs.rank < 0 || knobs.size < 0) {
    const bool rank = knobs.rank >= 0;
    return StartupError(prefix + (rank ? "RANK" : "SIZE") + " is " + std::to_string(rank ? knobs.rank : knobs.size) +
                        ", but " + prefix + (rank ? "SIZE" : "RANK") + " is not set; horocacherun sets both");
  }
  const auto names = [&](const std::string& kind) { return prefix + kind + "RANK and " + prefix + kind + "SIZE"; };
  Claim claim;
  claim.source = "horocacherun";
  claim.job = knobs.job_id;
  claim.job_hint = names("") +
                   " are set, but HOROCACHE_JOB_ID is not, by which the ranks of a job find each other; set it to the "
                   "same text on every rank of the job (horocacherun does), and to another for every other job";
  claim.rank = knobs.rank;
  claim.size = knobs.size;
  if (knobs.size != 1) {  // for a single rank, the other variables are left over from the job that started it
    claim.local_rank = knobs.local_rank;
    claim.local_size = knobs.local_size;
    claim.cross_rank = knobs.cross_rank;
    claim.cross_size = knobs.cross_size;
  }
  claim.rank_names = names("");
  claim.local_names = names("LOCAL_");
  claim.cross_names = names("CROSS_");
  return Finish(std::move(claim));
}

// The folder that torchrun makes for itself, from ".../<run id>_<random>/attempt_0/<local rank>/error.json".
std::string FolderOfTorchrun(const Environment& environment) {
  std::string path = Text(environment, "TORCHELASTIC_ERROR_FILE");
  for (int level = 0; level < 3; ++level) path.resize(path.find_last_of('/') == path.npos ? 0 : path.find_last_of('/'));
  return path;
}

StatusOr<Identity> FromTorchrun(const Knobs& knobs, const Environment& environment) {
  Reader reader(environment, "torchrun");
  Claim claim;
  claim.source = "torchrun";
  claim.rank = reader.Required("RANK");
  claim.size = reader.Required("WORLD_SIZE");
  claim.local_rank = reader.Optional("LOCAL_RANK", kUnset);
  claim.local_size = reader.Optional("LOCAL_WORLD_SIZE", kUnset);
  claim.cross_rank = reader.Optional("GROUP_RANK", kUnset);
  claim.cross_size = reader.Optional("GROUP_WORLD_SIZE", kUnset);
  HC_RETURN_IF_ERROR(reader.status());
  claim.job = knobs.job_id;
  const std::string port = Text(environment, "MASTER_PORT");
  const std::string run = Text(environment, "TORCHELASTIC_RUN_ID");
  if (claim.job.empty() && !(port.empty() && run.empty())) {
    claim.job = Text(environment, "MASTER_ADDR") + ":" + port + ":" + run + ":" +
                Text(environment, "TORCHELASTIC_RESTART_COUNT");
    if (const std::string folder = FolderOfTorchrun(environment); !folder.empty()) {
      claim.job += ":" + folder;
    } else {
      for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "WORLD_SIZE"}) {
        if (Has(environment, name)) claim.shared_claim.push_back(std::string(name) + "=" + Text(environment, name));
      }
    }
  }
  claim.job_hint =
      "RANK and WORLD_SIZE are set, but neither MASTER_PORT nor TORCHELASTIC_RUN_ID is, which torchrun "
      "sets and by which ranks of one job find each other; start with torchrun or horocacherun, or set "
      "HOROCACHE_JOB_ID";
  claim.rank_names = "RANK and WORLD_SIZE";
  claim.local_names = "LOCAL_RANK and LOCAL_WORLD_SIZE";
  claim.cross_names = "GROUP_RANK and GROUP_WORLD_SIZE";
  return Finish(std::move(claim));
}

// The number of tasks on node `node` in Slurm's notation: "2(x3),1" means three nodes with two tasks, then one with
// one.
std::optional<int64_t> TasksOnNode(std::string_view text, int64_t node) {
  const auto number = [&text]() -> std::optional<int64_t> {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || value < 1 || value > kMaxRanks) return std::nullopt;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    return value;
  };
  while (true) {
    const std::optional<int64_t> tasks = number();
    if (!tasks) return std::nullopt;
    int64_t nodes = 1;
    if (text.starts_with("(x")) {
      text.remove_prefix(2);
      const std::optional<int64_t> times = number();
      if (!times || !text.starts_with(")")) return std::nullopt;
      text.remove_prefix(1);
      nodes = *times;
    }
    if (node < nodes) return tasks;
    node -= nodes;
    if (!text.starts_with(",")) return std::nullopt;
    text.remove_prefix(1);
  }
}

// True if srun started the step. Slurm numbers such steps from 0. Its batch script and interactive shell are steps with
// numbers near 2^32.
bool IsStepOfSrun(const std::string& step) {
  constexpr uint64_t kReserved = 0xfffffff0;
  uint64_t number = 0;
  return !step.empty() && (!ParseNumber(step, &number) || number < kReserved);
}

StatusOr<Identity> FromSlurm(const Knobs& knobs, const Environment& environment) {
  Reader reader(environment, "srun");
  Claim claim;
  claim.source = "srun";
  claim.starts_mpi = Has(environment, "PMIX_RANK") || Has(environment, "PMI_RANK");  // srun --mpi=pmix, or pmi2
  claim.rank = reader.Required("SLURM_PROCID");
  claim.size = reader.Optional("SLURM_STEP_NUM_TASKS", kUnset);
  if (claim.size == kUnset) claim.size = reader.Required("SLURM_NTASKS");
  claim.local_rank = reader.Optional("SLURM_LOCALID", kUnset);
  claim.cross_rank = reader.Optional("SLURM_NODEID", kUnset);
  claim.cross_size = reader.Optional("SLURM_STEP_NUM_NODES", kUnset);
  if (claim.cross_size == kUnset) claim.cross_size = reader.Optional("SLURM_NNODES", 1);
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    if (claim.cross_size <= 1 || claim.local_size != kUnset || !Has(environment, name)) continue;
    const std::string text = Text(environment, name);
    const std::optional<int64_t> tasks = TasksOnNode(text, claim.cross_rank < 0 ? 0 : claim.cross_rank);
    if (tasks) {
      claim.local_size = *tasks;
    } else {
      reader.Fail(std::string(name) + " is '" + Printable(text) + "', which names no number of tasks for node " +
                  std::to_string(claim.cross_rank) + " (SLURM_NODEID)");
    }
  }
  HC_RETURN_IF_ERROR(reader.status());
  const std::string job = Text(environment, "SLURM_JOB_ID");
  claim.job = !knobs.job_id.empty() ? knobs.job_id : job.empty() ? "" : job + "." + Text(environment, "SLURM_STEP_ID");
  claim.job_hint = "SLURM_STEP_ID is set, but SLURM_JOB_ID is not; start with srun, or set HOROCACHE_JOB_ID";
  claim.rank_names = "SLURM_PROCID and SLURM_NTASKS";
  claim.local_names = "SLURM_LOCALID and SLURM_STEP_TASKS_PER_NODE";
  claim.cross_names = "SLURM_NODEID and SLURM_NNODES";
  return Finish(std::move(claim));
}

// Launchers that give each process its rank and the size, and start MPI.
struct MpiLauncher {
  const char *source, *mpi;
  const char *rank, *size;
  const char *local_rank, *local_size;
  // True: ignored unless rank and size are both set, as one without the other has another meaning or comes from an
  // outer launcher.
  bool needs_both = false;
};
constexpr std::array<MpiLauncher, 7> kMpiLaunchers = {{
    {"mpiexec", "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"jsrun", "", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"},
    {"mpiexec", "", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"mpiexec", "", "MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE", "MVP_COMM_WORLD_LOCAL_RANK",
     "MVP_COMM_WORLD_LOCAL_SIZE"},
    // MPICH's and Intel's Hydra; then PALS, PRRTE and all others that speak PMI.
    {"mpiexec", "", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"mpiexec", "", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"},
    {"flux", "", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "", "", true},
}};

const MpiLauncher* FindMpiLauncher(const Environment& environment) {
  const MpiLauncher* found = nullptr;
  for (const MpiLauncher& launcher : kMpiLaunchers) {
    const int has = (Has(environment, launcher.rank) ? 1 : 0) + (Has(environment, launcher.size) ? 1 : 0);
    if (has < (launcher.needs_both ? 2 : 1)) continue;
    if (found == nullptr) found = &launcher;
    // Of two launchers with the same rank variable, prefers the one whose local rank is set.
    const bool same = std::string_view(found->rank) == launcher.rank;
    if (same && !Has(environment, found->local_rank) && Has(environment, launcher.local_rank)) found = &launcher;
  }
  return found;
}

StatusOr<Identity> FromMpiexec(const MpiLauncher& launcher, const Knobs& knobs, const Environment& environment) {
  Reader reader(environment, launcher.source);
  Claim claim;
  claim.source = launcher.source;
  claim.starts_mpi = true;
  claim.mpi = launcher.mpi;
  claim.rank_names = std::string(launcher.rank) + " and " + launcher.size;
  claim.local_names = std::string(launcher.local_rank) + " and " + launcher.local_size;
  claim.cross_names = claim.local_names;
  claim.rank = reader.Required(launcher.rank);
  claim.size = reader.Required(launcher.size);
  claim.local_rank = reader.Optional(launcher.local_rank, kUnset);
  claim.local_size = reader.Optional(launcher.local_size, kUnset);
  HC_RETURN_IF_ERROR(reader.status());
  claim.job = knobs.job_id;
  for (const char* name : {"PMIX_NAMESPACE", "PMI_JOBID", "OMPI_MCA_ess_base_jobid", "FLUX_JOB_ID", "PALS_APID"}) {
    if (claim.job.empty()) claim.job = Text(environment, name);
  }
  claim.job_hint = claim.rank_names +
                   " are set, but this launcher names the job neither in PMIX_NAMESPACE nor in "
                   "PMI_JOBID nor in OMPI_MCA_ess_base_jobid; set HOROCACHE_JOB_ID to the same text on every rank "
                   "(mpiexec -genv HOROCACHE_JOB_ID name ...), or start with horocacherun";
  return Finish(std::move(claim));
}

constexpr const char* kAlone = "HOROCACHE_RANK=0 and HOROCACHE_SIZE=1 let this process run alone";

// Variables that give the number of this process among several, but not how many there are; each with its launcher.
constexpr std::array<std::pair<const char*, const char*>, 6> kUncounted = {
    {{"ALPS_APP_PE", "aprun"},
     {"PALS_RANKID", "PALS"},
     {"FLUX_TASK_RANK", "flux"},
     {"MPIRUN_RANK", "mpirun_rsh"},
     {"PMI_ID", "a launcher that speaks PMI"},
     {"PMIX_RANK", "a launcher that speaks PMIx"}}};

StatusOr<Identity> FromUncounted(const std::string& name, const std::string& launcher, const Environment& environment) {
  Reader reader(environment, launcher);
  Identity identity;
  identity.rank = static_cast<int>(reader.Required(name));
  HC_RETURN_IF_ERROR(reader.status());
  identity.size = 0;
  identity.source = launcher;
  identity.names = name;
  identity.starts_mpi = true;
  identity.no_job = name + " is '" + Printable(Text(environment, name)) + "', so " + launcher +
                    " has started this process as one of several, but no variable has their number. Use an MPI "
                    "library that belongs to the launcher, or set HOROCACHE_RANK, HOROCACHE_SIZE and HOROCACHE_JOB_ID "
                    "for every process, or start with horocacherun; " +
                    kAlone;
  return identity;
}

// An error if a launcher gives the number of ranks, but only this process's number on its host.
Status CheckCount(const Environment& environment) {
  int64_t size = 0;
  if (!Has(environment, "LOCAL_RANK") || Has(environment, "RANK") ||
      !ParseNumber(Text(environment, "WORLD_SIZE"), &size) || size < 2) {
    return Status::Ok();
  }
  return StartupError("LOCAL_RANK and WORLD_SIZE=" + std::to_string(size) + " are set, so this process is one of " +
                      std::to_string(size) +
                      ", but RANK is not, which says which; set it, or start with torchrun or "
                      "horocacherun; " +
                      kAlone);
}

bool IsFromEnvironment(const Knobs& knobs, std::string_view name) {
  for (size_t i = 0; i < knobs.entries.size(); ++i) {
    if (KnobTable()[i].name == name) return knobs.entries[i].source == KnobSource::kEnvironment;
  }
  return false;
}

}  // namespace

Status CheckWorld(const Identity& identity, int rank, int size, const std::string& library) {
  const bool counted = identity.size != 0;
  const bool fits = counted ? identity.rank == rank && identity.size == size : identity.rank < size;
  if (identity.source == "none" || fits) return Status::Ok();
  const std::string number = std::to_string(identity.rank);
  const std::string said =
      counted ? " as rank " + number + " of " + std::to_string(identity.size) + " (" + identity.names + ")"
              : " as number " + number + " (" + identity.names + ")";
  return StartupError(
      identity.source + " started this process" + said + ", but in its MPI library " + library + " it is rank " +
      std::to_string(rank) + " of " + std::to_string(size) +
      ": the library does not belong to the launcher. Start the job with the mpiexec of this library, or name the "
      "launcher's library in HOROCACHE_MPI_LIBRARY (and in MPI4PY_LIBMPI if mpi4py is used), or " +
      (counted ? "set HOROCACHE_MPI=off to do without MPI on one host" : "start with horocacherun") + "; " + kAlone);
}

std::string DoubtInWorld(const Identity& identity, int size, const std::string& library) {
  if (identity.size != 0 || size != 1) return "";
  return identity.names + " is 0, and no variable has the number of processes that " + identity.source +
         " has started; this one runs alone, because its MPI library " + library +
         " has a world of one rank. If there are others, the library does not belong to the launcher. " + kAlone +
         " without this warning";
}

std::string LauncherVariables(const Environment& environment) {
  std::string lines;
  const auto add = [&](const char* name) {
    if (Has(environment, name)) lines += std::string(name) + "=" + Text(environment, name) + "\n";
  };
  for (const char* name : {"TORCHELASTIC_RUN_ID", "SLURM_STEP_ID", "SLURM_PROCID", "PMIX_NAMESPACE", "PMI_FD"})
    add(name);
  for (const MpiLauncher& launcher : kMpiLaunchers) {
    add(launcher.rank);
    add(launcher.size);
  }
  for (const auto& [name, launcher] : kUncounted) add(name);
  return lines;
}

namespace {

bool IsNested(const Knobs& knobs, const Environment& environment) {
  return IsFromEnvironment(knobs, "rank") && Has(environment, kOuterLauncher) &&
         Text(environment, kOuterLauncher) != LauncherVariables(environment);
}

// Ignores the variables that horocacherun set for the rank in which another launcher was started.
StatusOr<Identity> DetectNested(Knobs knobs, Environment environment) {
  environment.erase(kOuterLauncher);
  const bool torchrun = Has(environment, "TORCHELASTIC_RUN_ID");
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    if (!torchrun) environment.erase(name);
  }
  knobs.rank = knobs.size = -1;
  knobs.job_id.clear();
  return DetectIdentity(knobs, environment);
}

// True if Slurm's variables count the ranks. Inside salloc or sbatch, but outside a step that srun started, there is
// one process, independent of SLURM_NTASKS. Open MPI's and MPICH's launchers start their daemons with srun; then their
// own variables count the ranks.
bool CountsBySlurm(const Environment& environment, const MpiLauncher* mpi) {
  const bool has_daemons =
      mpi != nullptr && (std::string_view(mpi->rank) != "PMI_RANK" || Has(environment, "MPI_LOCALRANKID"));
  return IsStepOfSrun(Text(environment, "SLURM_STEP_ID")) && Has(environment, "SLURM_PROCID") && !has_daemons;
}

}  // namespace

StatusOr<Identity> DetectIdentity(const Knobs& knobs, const std::map<std::string, std::string>& environment) {
  const auto has = [&](const char* name) { return Has(environment, name); };
  if (knobs.rank >= 0 || knobs.size >= 0) {
    return IsNested(knobs, environment) ? DetectNested(knobs, environment) : FromKnobs(knobs, environment);
  }
  // RANK alone is too common a name to mean torchrun.
  if (has("TORCHELASTIC_RUN_ID") || (has("RANK") && has("WORLD_SIZE"))) return FromTorchrun(knobs, environment);
  const MpiLauncher* const mpi = FindMpiLauncher(environment);
  if (CountsBySlurm(environment, mpi)) return FromSlurm(knobs, environment);
  if (mpi != nullptr) return FromMpiexec(*mpi, knobs, environment);
  const std::string step = Text(environment, "SLURM_STEP_ID");
  const bool in_shell_of_slurm = !step.empty() && !IsStepOfSrun(step);  // such a shell has variables of PMIx
  for (const auto& [name, launcher] : kUncounted) {
    if (has(name) && !in_shell_of_slurm) return FromUncounted(name, launcher, environment);
  }
  HC_RETURN_IF_ERROR(CheckCount(environment));
  Identity alone;
  alone.job = "alone";
  alone.source = "none";
  return alone;
}

}  // namespace horocache::net
