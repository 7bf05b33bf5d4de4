#include "net/mpi/mpi_process.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/text.h"
#include "net/mpi/watchdog.h"

namespace horocache::net {
namespace {

// See the file comment of mpi_process.h.
struct Process {
  Mutex mutex;
  std::unique_ptr<Mpi> mpi HC_GUARDED_BY(mutex);
  pid_t initialised_by HC_GUARDED_BY(mutex) = 0;  // process whose horocache initialised MPI; 0: none
  std::atomic<bool> unfinalized{false};
};

// Never destroyed: exit handlers use it.
Process& TheProcess() {
  static auto* const process = new Process;
  return *process;
}

void FinalizeAtExit() {
  Process& process = TheProcess();
  const MutexLock lock(process.mutex);
  // A child of fork() inherits this exit handler, but not MPI.
  if (process.initialised_by != getpid() || process.unfinalized.load() || process.mpi->Finalized()) return;
  constexpr int64_t kLongNs = 30'000'000'000;
  const Watchdog watchdog(kLongNs, [] {
    SayLine(
        "this process has ended and waits in MPI_Finalize for the other ranks of the job to end; mpiexec can stop "
        "it.");
  });
  if (const Status status = process.mpi->Finalize(); !status.ok()) SayLine(status.message());
}

Status TooFewThreads(const Mpi& mpi, MpiThreads have, MpiThreads need, bool ours) {
  const std::string library = "'" + mpi.path() + "' (" + mpi.Version() + ")";
  const std::string levels = "thread level '" + std::string(MpiThreadsName(have)) + "', horocache needs '" +
                             std::string(MpiThreadsName(need)) + "'";
  if (ours) {
    return UnsupportedError(
        "the MPI library " + library + " gives " + levels +
        ". Use a build with threads, or set HOROCACHE_MPI_THREADS_DISABLE=1 if no other thread of the "
        "program calls MPI.");
  }
  return UnsupportedError("the MPI library " + library + " was initialised with " + levels +
                          ". Initialise it with MPI_THREAD_MULTIPLE (mpi4py does unless mpi4py.rc.thread_level says "
                          "otherwise), or call horocache's init() first.");
}

// Fails if the library does not belong to the launcher. Such a library ends the process in MPI_Init, with a message
// that names neither.
Status CheckLauncher(const Mpi& mpi, const std::string& launcher) {
  const std::string version = mpi.Version();
  if (launcher.empty() || version.starts_with(launcher)) return Status::Ok();
  return UnsupportedError(
      "the job was started by the mpiexec of " + launcher + ", but the MPI library '" + mpi.path() + "' is '" +
      version +
      "'. Start the job with the mpiexec that belongs to the library, or name the launcher's library "
      "in HOROCACHE_MPI_LIBRARY.");
}

Status Initialise(Mpi& mpi, const MpiNeeds& needs) {
  HC_RETURN_IF_ERROR(CheckLauncher(mpi, needs.launcher));
  const Watchdog watchdog(needs.timeout_ns, [&] {
    Watchdog::EndProcess("MPI_Init of '" + mpi.path() + "' has waited for the other ranks for " +
                         SecondsText(needs.timeout_ns) +
                         " (HOROCACHE_START_TIMEOUT). Does every rank call init(), on every host, with the same MPI "
                         "library?");
  });
  const StatusOr<MpiThreads> level = mpi.InitThread(needs.threads);
  return level.ok() ? Status::Ok() : UnsupportedError("'" + mpi.path() + "': " + level.status().message());
}

}  // namespace

StatusOr<Mpi*> AcquireMpi(const MpiNeeds& needs) {
  Process& process = TheProcess();
  const MutexLock lock(process.mutex);
  // At every call, because another library may have been loaded since the last one.
  StatusOr<std::unique_ptr<Mpi>> found = FindMpi(needs.search);
  if (!found.ok()) return found.status();
  if (process.mpi == nullptr) process.mpi = std::move(*found);
  Mpi& mpi = *process.mpi;
  if (mpi.Finalized()) {
    return UnsupportedError(
        "the MPI library '" + mpi.path() +
        "' has been finalised in this process, and MPI cannot be initialised again. Call MPI_Finalize "
        "after horocache's shutdown(), or leave it to the end of the process.");
  }
  if (!mpi.Initialized()) {
    HC_RETURN_IF_ERROR(Initialise(mpi, needs));
    process.initialised_by = getpid();
    std::atexit(&FinalizeAtExit);
  }
  if (const MpiThreads level = mpi.QueryThread(); level < needs.threads) {
    return TooFewThreads(mpi, level, needs.threads, process.initialised_by != 0);
  }
  return &mpi;
}

bool MpiIsRunning() {
  for (const std::string& path : LoadedMpis()) {
    StatusOr<DynamicLibrary> library = DynamicLibrary::Open(path, false);
    if (!library.ok()) continue;
    const StatusOr<std::unique_ptr<Mpi>> mpi = Mpi::Load(std::move(*library));
    if (mpi.ok() && (*mpi)->Initialized() && !(*mpi)->Finalized()) return true;
  }
  return false;
}

void LeaveMpiUnfinalized() { TheProcess().unfinalized.store(true); }

}  // namespace horocache::net
