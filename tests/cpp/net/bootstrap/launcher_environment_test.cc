#include "net/bootstrap/launcher_environment.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace horocache::net {
namespace {

using Environment = std::map<std::string, std::string>;

StatusOr<Identity> Detect(const Environment& environment) {
  const StatusOr<Knobs> knobs = Knobs::Parse(environment, {});
  if (!knobs.ok()) return knobs.status();
  return DetectIdentity(*knobs, environment);
}

void ExpectRefused(const Environment& environment, const std::vector<std::string>& parts) {
  const StatusOr<Identity> identity = Detect(environment);
  ASSERT_FALSE(identity.ok()) << identity->source << " " << identity->rank << " of " << identity->size;
  EXPECT_EQ(identity.status().code(), StatusCode::kStartup);
  for (const std::string& part : parts) {
    EXPECT_NE(identity.status().message().find(part), std::string::npos)
        << "'" << part << "' is not in: " << identity.status().message();
  }
}

// Expects that the rank is known but the job is not, so that the ranks cannot find each other without MPI.
void ExpectNoJob(const Environment& environment, const std::vector<std::string>& parts) {
  const StatusOr<Identity> identity = Detect(environment);
  ASSERT_TRUE(identity.ok()) << identity.status().ToString();
  EXPECT_EQ(identity->job, "");
  for (const std::string& part : parts) {
    EXPECT_NE(identity->no_job.find(part), std::string::npos) << "'" << part << "' is not in: " << identity->no_job;
  }
}

void ExpectIdentity(const Environment& environment, const Identity& expected) {
  const StatusOr<Identity> identity = Detect(environment);
  ASSERT_TRUE(identity.ok()) << identity.status().ToString();
  EXPECT_EQ(identity->source, expected.source);
  EXPECT_EQ(identity->job, expected.job);
  EXPECT_EQ(identity->rank, expected.rank);
  EXPECT_EQ(identity->size, expected.size);
  EXPECT_EQ(identity->local_rank, expected.local_rank);
  EXPECT_EQ(identity->local_size, expected.local_size);
  EXPECT_EQ(identity->cross_rank, expected.cross_rank);
  EXPECT_EQ(identity->cross_size, expected.cross_size);
}

Environment With(Environment base, const Environment& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

Environment Without(Environment base, const std::string& name) {
  base.erase(name);
  return base;
}

const Environment kTorchrun = {{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"GROUP_RANK", "1"},
                               {"GROUP_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "10.0.0.1"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_RUN_ID", "abc"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Environment kSrun = {{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "5"}, {"SLURM_LOCALID", "0"},
                           {"SLURM_NODEID", "1"},  {"SLURM_NNODES", "3"}, {"SLURM_STEP_TASKS_PER_NODE", "3,1(x2)"},
                           {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "4"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_NAMESPACE", "prterun-host-1234@1"}};
const Environment kMpich = {{"PMI_RANK", "2"},
                            {"PMI_SIZE", "4"},
                            {"MPI_LOCALRANKID", "2"},
                            {"MPI_LOCALNRANKS", "4"},
                            {"HOROCACHE_JOB_ID", "mine"}};

TEST(Identity, WithoutALauncherThereIsOneRank) {
  ExpectIdentity({}, {0, 1, 0, 1, 0, 1, "alone", "none"});
  ExpectIdentity({{"RANK", "the rank of something else"}}, {0, 1, 0, 1, 0, 1, "alone", "none"});
}

TEST(Identity, ComesFromHorocacherunFirst) {
  const Environment own = {{"HOROCACHE_RANK", "1"},       {"HOROCACHE_SIZE", "4"},       {"HOROCACHE_LOCAL_RANK", "1"},
                           {"HOROCACHE_LOCAL_SIZE", "2"}, {"HOROCACHE_CROSS_RANK", "0"}, {"HOROCACHE_CROSS_SIZE", "2"},
                           {"HOROCACHE_JOB_ID", "j1"}};
  const Identity expected{1, 4, 1, 2, 0, 2, "horocacherun:j1", "horocacherun"};
  ExpectIdentity(own, expected);
  ExpectIdentity(With(With(kTorchrun, kSrun), With(kOpenMpi, own)), expected);
}

TEST(Identity, OfAllRanksOnOneHostNeedsNoLocalRank) {
  ExpectIdentity({{"HOROCACHE_RANK", "1"}, {"HOROCACHE_SIZE", "3"}, {"HOROCACHE_JOB_ID", "j"}},
                 {1, 3, 1, 3, 0, 1, "horocacherun:j", "horocacherun"});
}

TEST(Identity, OfHorovodsVariablesWorksToo) {
  ExpectIdentity({{"HOROVOD_RANK", "1"}, {"HOROVOD_SIZE", "2"}, {"HOROCACHE_JOB_ID", "j"}},
                 {1, 2, 1, 2, 0, 1, "horocacherun:j", "horocacherun"});
}

TEST(Identity, ErrorsNameHorovodsVariablesIfTheUserHasSetThem) {
  ExpectNoJob({{"HOROVOD_RANK", "0"}, {"HOROVOD_SIZE", "2"}, {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1"}},
              {"HOROVOD_RANK and HOROVOD_SIZE are set", "HOROCACHE_JOB_ID"});
  ExpectRefused({{"HOROVOD_RANK", "2"}, {"HOROVOD_SIZE", "2"}}, {"HOROVOD_RANK and HOROVOD_SIZE are 2 and 2"});
  ExpectRefused({{"HOROVOD_RANK", "1"}}, {"HOROVOD_RANK is 1", "HOROVOD_SIZE is not set"});
}

TEST(Identity, OfOneRankIgnoresOtherVariablesOfTheRankThatStartedIt) {
  ExpectIdentity({{"HOROCACHE_RANK", "0"},
                  {"HOROCACHE_SIZE", "1"},
                  {"HOROCACHE_LOCAL_RANK", "1"},
                  {"HOROCACHE_LOCAL_SIZE", "2"},
                  {"HOROCACHE_JOB_ID", "outer"}},
                 {0, 1, 0, 1, 0, 1, "horocacherun:outer", "horocacherun"});
}

TEST(Identity, OfOneRankNeedsNoJob) {
  ExpectIdentity({{"HOROCACHE_RANK", "0"}, {"HOROCACHE_SIZE", "1"}}, {0, 1, 0, 1, 0, 1, "alone", "horocacherun"});
}

TEST(Identity, IncompleteVariablesOfHorocacheAreRefused) {
  ExpectRefused({{"HOROCACHE_RANK", "1"}}, {"HOROCACHE_RANK is 1", "HOROCACHE_SIZE is not set"});
  ExpectRefused({{"HOROCACHE_SIZE", "2"}}, {"HOROCACHE_SIZE is 2", "HOROCACHE_RANK is not set"});
  ExpectNoJob({{"HOROCACHE_RANK", "1"}, {"HOROCACHE_SIZE", "2"}}, {"HOROCACHE_JOB_ID"});
}

TEST(Identity, ContradictoryVariablesOfHorocacheAreRefused) {
  const Environment base = {{"HOROCACHE_RANK", "1"}, {"HOROCACHE_SIZE", "4"}, {"HOROCACHE_JOB_ID", "j"}};
  ExpectRefused(With(base, {{"HOROCACHE_RANK", "4"}}), {"HOROCACHE_RANK and HOROCACHE_SIZE", "4 and 4"});
  ExpectRefused(With(base, {{"HOROCACHE_SIZE", "0"}}), {"HOROCACHE_RANK and HOROCACHE_SIZE", "1 and 0"});
  ExpectRefused(With(base, {{"HOROCACHE_LOCAL_RANK", "2"}, {"HOROCACHE_LOCAL_SIZE", "2"}}),
                {"HOROCACHE_LOCAL_RANK and HOROCACHE_LOCAL_SIZE", "2 and 2"});
  ExpectRefused(With(base, {{"HOROCACHE_LOCAL_SIZE", "5"}}), {"0 and 5", "at most 4"});
  ExpectRefused(With(base, {{"HOROCACHE_CROSS_RANK", "3"}, {"HOROCACHE_CROSS_SIZE", "2"}}), {"HOROCACHE_CROSS_RANK"});
  ExpectRefused(
      With(base, {{"HOROCACHE_LOCAL_SIZE", "2"}, {"HOROCACHE_LOCAL_RANK", "1"}, {"HOROCACHE_CROSS_SIZE", "1"}}),
      {"do not fit together", "HOROCACHE_CROSS_SIZE"});
}

TEST(Identity, ComesFromTorchrun) {
  ExpectIdentity(kTorchrun, {5, 8, 1, 4, 1, 2, "torchrun:10.0.0.1:29500:abc:2", "torchrun"});
  ExpectIdentity({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}},
                 {1, 2, 1, 2, 0, 1, "torchrun::1::", "torchrun"});
}

TEST(Identity, TheFolderOfTorchrunDistinguishesJobsWithTheSameAddress) {
  const auto of = [](const std::string& file) { return Detect(With(kTorchrun, {{"TORCHELASTIC_ERROR_FILE", file}})); };
  const auto one = of("a/torchelastic_x/abc_1/attempt_2/0/error.json");
  const auto same = of("a/torchelastic_x/abc_1/attempt_2/1/error.json");
  const auto other = of("a/torchelastic_y/abc_2/attempt_2/0/error.json");
  EXPECT_EQ(one->job, "torchrun:10.0.0.1:29500:abc:2:a/torchelastic_x/abc_1");
  EXPECT_EQ(one->job, same->job);
  EXPECT_NE(one->job, other->job);
  EXPECT_TRUE(one->shared_claim.empty());
  for (const char* file : {"", "error.json", "/error.json", "a/error.json"}) {
    EXPECT_EQ(of(file)->job, "torchrun:10.0.0.1:29500:abc:2") << file;
    EXPECT_FALSE(of(file)->shared_claim.empty()) << file;
  }
}

TEST(Identity, AJobWithAnAddressOnlyHasASharedClaim) {
  const Environment by_hand = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(Detect(by_hand)->shared_claim,
            (std::vector<std::string>{"MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500", "WORLD_SIZE=2"}));
  EXPECT_TRUE(Detect(With(by_hand, {{"HOROCACHE_JOB_ID", "mine"}}))->shared_claim.empty());
  EXPECT_TRUE(Detect(kSrun)->shared_claim.empty());
  EXPECT_TRUE(Detect(kOpenMpi)->shared_claim.empty());
}

TEST(Identity, ARestartByTorchrunIsAnotherJob) {
  const auto first = Detect(kTorchrun), second = Detect(With(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "3"}}));
  EXPECT_NE(first->job, second->job);
}

TEST(Identity, WrongVariablesOfTorchrunAreNamed) {
  ExpectRefused(Without(kTorchrun, "WORLD_SIZE"), {"torchrun", "WORLD_SIZE is not set"});
  ExpectRefused(Without(kTorchrun, "RANK"), {"torchrun", "RANK is not set"});
  ExpectRefused(With(kTorchrun, {{"RANK", "five"}}), {"RANK is 'five'"});
  ExpectRefused(With(kTorchrun, {{"RANK", "-1"}}), {"RANK is '-1'"});
  ExpectRefused(With(kTorchrun, {{"WORLD_SIZE", "8\n"}}), {"WORLD_SIZE is '8\\n'"});
  ExpectRefused(With(kTorchrun, {{"WORLD_SIZE", "99999999999999999999"}}), {"WORLD_SIZE is '999"});
  ExpectRefused(With(kTorchrun, {{"RANK", "8"}}), {"RANK and WORLD_SIZE", "8 and 8"});
  ExpectRefused(With(kTorchrun, {{"LOCAL_RANK", "4"}}), {"LOCAL_RANK and LOCAL_WORLD_SIZE", "4 and 4"});
  ExpectNoJob({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, {"MASTER_PORT", "HOROCACHE_JOB_ID"});
}

TEST(Identity, ComesFromSrun) {
  ExpectIdentity(kSrun, {3, 5, 0, 1, 1, 3, "srun:77.4", "srun"});
  ExpectIdentity(With(kSrun, {{"SLURM_NODEID", "0"}, {"SLURM_LOCALID", "2"}, {"SLURM_PROCID", "2"}}),
                 {2, 5, 2, 3, 0, 3, "srun:77.4", "srun"});
  ExpectIdentity(With(kSrun, {{"SLURM_NNODES", "1"}, {"SLURM_NODEID", "0"}, {"SLURM_LOCALID", "3"}}),
                 {3, 5, 3, 5, 0, 1, "srun:77.4", "srun"});
}

TEST(Identity, InsideAnAllocationButOutsideAStepThereIsOneRank) {
  ExpectIdentity(Without(kSrun, "SLURM_STEP_ID"), {0, 1, 0, 1, 0, 1, "alone", "none"});
  for (const char* step : {"4294967291", "4294967290"}) {  // the batch script, the interactive shell
    ExpectIdentity(With(kSrun, {{"SLURM_STEP_ID", step}}), {0, 1, 0, 1, 0, 1, "alone", "none"});
  }
}

TEST(Identity, WrongVariablesOfSlurmAreNamed) {
  ExpectRefused(Without(kSrun, "SLURM_NTASKS"), {"SLURM_NTASKS is not set"});
  ExpectRefused(With(kSrun, {{"SLURM_PROCID", "5"}}), {"SLURM_PROCID and SLURM_NTASKS", "5 and 5"});
  ExpectNoJob(Without(kSrun, "SLURM_JOB_ID"), {"SLURM_JOB_ID"});
  for (const char* text : {"", "x", "3,", "3(x", "3(x2", "3(y2)", "0", "3"}) {
    ExpectRefused(With(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", text}}), {"SLURM_STEP_TASKS_PER_NODE", "node 1"});
  }
}

TEST(Identity, HasTheFlagWhetherTheLauncherStartsMpi) {
  EXPECT_FALSE(Detect(kSrun)->starts_mpi);
  EXPECT_TRUE(Detect(With(kSrun, {{"PMIX_RANK", "3"}}))->starts_mpi);
  EXPECT_TRUE(Detect(With(kSrun, {{"PMI_RANK", "3"}}))->starts_mpi);
  EXPECT_TRUE(Detect(kOpenMpi)->starts_mpi);
  EXPECT_TRUE(Detect(kMpich)->starts_mpi);
  EXPECT_FALSE(Detect(kTorchrun)->starts_mpi);
}

TEST(Identity, ComesFromOpenMpi) {
  ExpectIdentity(kOpenMpi, {1, 2, 1, 2, 0, 1, "mpiexec:prterun-host-1234@1", "mpiexec"});
  ExpectIdentity(With(Without(kOpenMpi, "PMIX_NAMESPACE"), {{"OMPI_MCA_ess_base_jobid", "42"}}),
                 {1, 2, 1, 2, 0, 1, "mpiexec:42", "mpiexec"});
}

TEST(Identity, OpenMpiInsideAStepOfSlurmCountsTheRanks) {
  ExpectIdentity(With(kSrun, kOpenMpi), {1, 2, 1, 2, 0, 1, "mpiexec:prterun-host-1234@1", "mpiexec"});
}

TEST(Identity, ComesFromMpich) {
  ExpectIdentity(kMpich, {2, 4, 2, 4, 0, 1, "mpiexec:mine", "mpiexec"});
  ExpectIdentity(With(kMpich, {{"PMI_SIZE", "8"}, {"PMI_RANK", "6"}}), {6, 8, 2, 4, 1, 2, "mpiexec:mine", "mpiexec"});
}

TEST(Identity, WrongVariablesOfMpiexecAreNamed) {
  ExpectRefused(Without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), {"OMPI_COMM_WORLD_SIZE is not set"});
  ExpectRefused(With(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}}), {"OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"});
  ExpectNoJob(Without(kOpenMpi, "PMIX_NAMESPACE"), {"HOROCACHE_JOB_ID", "PMIX_NAMESPACE"});
  ExpectRefused(Without(kMpich, "PMI_RANK"), {"PMI_RANK is not set"});
  ExpectNoJob(Without(kMpich, "HOROCACHE_JOB_ID"), {"HOROCACHE_JOB_ID"});
}

TEST(Identity, ComesFromOtherLaunchersOfMpi) {
  for (const auto& [prefix, source] : std::vector<std::pair<std::string, std::string>>{
           {"JSM_NAMESPACE_", "jsrun"}, {"MV2_COMM_WORLD_", "mpiexec"}, {"MVP_COMM_WORLD_", "mpiexec"}}) {
    const Environment environment = {{prefix + "RANK", "3"},
                                     {prefix + "SIZE", "4"},
                                     {prefix + "LOCAL_RANK", "1"},
                                     {prefix + "LOCAL_SIZE", "2"},
                                     {"PMIX_NAMESPACE", "n"}};
    ExpectIdentity(environment, {3, 4, 1, 2, 1, 2, source + ":n", source});
    EXPECT_TRUE(Detect(environment)->starts_mpi);
    ExpectRefused(Without(environment, prefix + "SIZE"), {prefix + "SIZE is not set"});
    ExpectNoJob(Without(environment, "PMIX_NAMESPACE"), {prefix + "RANK", "HOROCACHE_JOB_ID"});
  }
}

TEST(Identity, FluxCountsItsTasks) {
  const Environment environment = {{"FLUX_TASK_RANK", "3"}, {"FLUX_JOB_SIZE", "4"}, {"FLUX_JOB_ID", "f7"}};
  ExpectIdentity(environment, {3, 4, 3, 4, 0, 1, "flux:f7", "flux"});
  ExpectIdentity({{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "1"}}, {0, 1, 0, 1, 0, 1, "alone", "flux"});
  ExpectRefused({{"FLUX_TASK_RANK", "4"}, {"FLUX_JOB_SIZE", "4"}}, {"FLUX_TASK_RANK and FLUX_JOB_SIZE are 4 and 4"});
  EXPECT_EQ(Detect({{"FLUX_JOB_SIZE", "4"}})->source, "none") << "left by a job that has started a shell";
}

TEST(Identity, OneOfSeveralProcessesIsNoJobOfOneRank) {
  for (const char* name : {"ALPS_APP_PE", "PALS_RANKID", "FLUX_TASK_RANK", "MPIRUN_RANK", "PMI_ID", "PMIX_RANK"}) {
    const Environment environment = {{name, "2"}};
    ExpectNoJob(environment, {std::string(name) + " is '2'", "HOROCACHE_RANK=0 and HOROCACHE_SIZE=1"});
    EXPECT_EQ(Detect(environment)->size, 0);
    EXPECT_TRUE(Detect(environment)->starts_mpi) << "MPI may have the numbers";
    ExpectIdentity(With(environment, {{"HOROCACHE_RANK", "0"}, {"HOROCACHE_SIZE", "1"}}),
                   {0, 1, 0, 1, 0, 1, "alone", "horocacherun"});
  }
  // Slurm sets such variables in the shell of an allocation, too.
  ExpectIdentity({{"PMIX_RANK", "0"}, {"SLURM_STEP_ID", "4294967290"}, {"SLURM_PROCID", "0"}},
                 {0, 1, 0, 1, 0, 1, "alone", "none"});
  ExpectRefused({{"LOCAL_RANK", "1"}, {"WORLD_SIZE", "2"}}, {"WORLD_SIZE=2", "RANK is not", "HOROCACHE_RANK=0"});
  ExpectIdentity({{"LOCAL_RANK", "0"}, {"WORLD_SIZE", "1"}}, {0, 1, 0, 1, 0, 1, "alone", "none"});
}

void ExpectOtherWorld(const Environment& environment, int rank, int size, const std::vector<std::string>& parts) {
  const Status checked = CheckWorld(*Detect(environment), rank, size, "'libmpi.so' (MPI 4)");
  EXPECT_EQ(checked.code(), StatusCode::kStartup) << rank << " of " << size;
  for (const std::string& part : parts) {
    EXPECT_NE(checked.message().find(part), std::string::npos) << "'" << part << "' is not in: " << checked.message();
  }
}

TEST(Identity, TheWorldOfMpiIsComparedWithTheNumbersOfTheLauncher) {
  for (const auto& [environment, names] :
       std::vector<std::pair<Environment, std::string>>{{kOpenMpi, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"},
                                                        {kMpich, "PMI_RANK and PMI_SIZE"},
                                                        {kSrun, "SLURM_PROCID and SLURM_NTASKS"},
                                                        {kTorchrun, "RANK and WORLD_SIZE"}}) {
    const StatusOr<Identity> identity = Detect(environment);
    EXPECT_TRUE(CheckWorld(*identity, identity->rank, identity->size, "").ok());
    EXPECT_EQ(DoubtInWorld(*identity, identity->size, ""), "");
    const std::string numbers = std::to_string(identity->rank) + " of " + std::to_string(identity->size);
    ExpectOtherWorld(environment, 0, 1, {names, "rank " + numbers, "it is rank 0 of 1", "'libmpi.so'"});
    ExpectOtherWorld(environment, identity->rank, identity->size + 1, {names});
  }
}

TEST(Identity, ARankBeyondTheWorldOfMpiIsRefusedWithoutASize) {
  for (const char* name : {"ALPS_APP_PE", "PALS_RANKID", "FLUX_TASK_RANK", "MPIRUN_RANK", "PMI_ID", "PMIX_RANK"}) {
    const Environment second = {{name, "1"}};
    ExpectOtherWorld(second, 0, 1, {"number 1 (" + std::string(name) + ")", "rank 0 of 1", "HOROCACHE_SIZE=1"});
    EXPECT_TRUE(CheckWorld(*Detect(second), 1, 2, "").ok()) << "a launcher may renumber the ranks";
    EXPECT_TRUE(CheckWorld(*Detect(second), 0, 2, "").ok());
    ExpectRefused({{name, "one"}}, {std::string(name) + " is 'one'"});

    const StatusOr<Identity> first = Detect({{name, "0"}});
    EXPECT_TRUE(CheckWorld(*first, 0, 1, "").ok());
    EXPECT_NE(DoubtInWorld(*first, 1, "").find(std::string(name) + " is 0"), std::string::npos);
    EXPECT_EQ(DoubtInWorld(*first, 2, ""), "");
  }
  EXPECT_TRUE(CheckWorld(*Detect({}), 3, 4, "").ok()) << "only MPI has the numbers";
  EXPECT_EQ(DoubtInWorld(*Detect({}), 1, ""), "");
}

TEST(Identity, OfALauncherInsideARankOverridesTheRanks) {
  // The variables of a rank of a horocacherun that mpiexec has started.
  const Environment outer = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_NAMESPACE", "a"}};
  const Environment rank = With(outer, {{"HOROCACHE_RANK", "1"},
                                        {"HOROCACHE_SIZE", "4"},
                                        {"HOROCACHE_JOB_ID", "j"},
                                        {"RANK", "1"},
                                        {"WORLD_SIZE", "4"},
                                        {"LOCAL_RANK", "1"},
                                        {"MASTER_PORT", "1"},
                                        {kOuterLauncher, LauncherVariables(outer)}});
  ExpectIdentity(rank, {1, 4, 1, 4, 0, 1, "horocacherun:j", "horocacherun"});
  ExpectIdentity(With(rank, kOpenMpi), {1, 2, 1, 2, 0, 1, "mpiexec:prterun-host-1234@1", "mpiexec"});
  ExpectIdentity(With(rank, {{"PMIX_NAMESPACE", "b"}}), {0, 1, 0, 1, 0, 1, "mpiexec:b", "mpiexec"});
  ExpectIdentity(With(With(rank, kTorchrun), {{"GROUP_WORLD_SIZE", "2"}}),
                 {5, 8, 1, 4, 1, 2, "torchrun:10.0.0.1:29500:abc:2", "torchrun"});
}

}  // namespace
}  // namespace horocache::net
