#include "base/environment.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

extern char** environ;

namespace horocache {
namespace {

bool Concerns(std::string_view entry) {
  static constexpr std::array<std::string_view, 28> kPrefixes = {"HOROCACHE_",
                                                                 "_HOROCACHE_",
                                                                 "HOROVOD_",
                                                                 "RANK=",
                                                                 "WORLD_SIZE=",
                                                                 "LOCAL_RANK=",
                                                                 "LOCAL_WORLD_SIZE=",
                                                                 "GROUP_RANK=",
                                                                 "GROUP_WORLD_SIZE=",
                                                                 "MASTER_",
                                                                 "TORCHELASTIC_",
                                                                 "SLURM_",
                                                                 "OMPI_COMM_",
                                                                 "PMI_",
                                                                 "PMIX_",
                                                                 "OMPI_MCA_ess_base_jobid=",
                                                                 "MPI_LOCAL",
                                                                 "JSM_NAMESPACE_",
                                                                 "MV2_COMM_WORLD_",
                                                                 "MVP_COMM_WORLD_",
                                                                 "MPIRUN_RANK=",
                                                                 "ALPS_APP_PE=",
                                                                 "PALS_RANKID=",
                                                                 "PALS_APID=",
                                                                 "FLUX_TASK_RANK=",
                                                                 "FLUX_JOB_ID=",
                                                                 "FLUX_JOB_SIZE=",
                                                                 "TMPDIR="};
  return std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return entry.starts_with(prefix); });
}

bool TunesMalloc(std::string_view entry) {
  static constexpr std::array<std::string_view, 4> kVariables = {
      "MALLOC_TRIM_THRESHOLD_=", "MALLOC_MMAP_THRESHOLD_=", "MALLOC_TOP_PAD_=", "MALLOC_MMAP_MAX_="};
  static constexpr std::array<std::string_view, 4> kTunables = {
      "glibc.malloc.trim_threshold=", "glibc.malloc.mmap_threshold=", "glibc.malloc.top_pad=",
      "glibc.malloc.mmap_max="};
  if (!entry.starts_with("GLIBC_TUNABLES="))
    return std::ranges::any_of(kVariables, [&](std::string_view name) { return entry.starts_with(name); });
  return std::ranges::any_of(kTunables, [&](std::string_view name) { return entry.find(name) != entry.npos; });
}

}  // namespace

std::map<std::string, std::string> ReadEnvironment() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    if (Concerns(text)) found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

bool EnvironmentTunesMalloc() {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (TunesMalloc(*entry)) return true;
  }
  return false;
}

void SetUnlessSet(const char* name, const char* value) { setenv(name, value, /*overwrite=*/0); }

}  // namespace horocache
