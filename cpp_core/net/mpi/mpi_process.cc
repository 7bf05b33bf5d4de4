#include "net/mpi/mpi_process.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/text.h"
#include "base/thread.h"

namespace horocache::net {
namespace {

// See the file comment of mpi_process.h.
struct Process {
  Mutex mutex;
  std::unique_ptr<Mpi> mpi HC_GUARDED_BY(mutex);
  pid_t initialised_by HC_GUARDED_BY(mutex) = 0;  // 0: not by us
  std::atomic<bool> unfinalized{false};
};

// Never destroyed: exit handlers use it.
Process& TheProcess() {
  static auto* const process = new Process;
  return *process;
}

void Say(const std::string& line) {
  const std::string text = "horocache: " + line + "\n";
  // The process is about to end, or waits in its end: no logger is left.
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

// Calls `late` on a thread of its own if it lives for longer than `limit_ns`.
class Watchdog {
 public:
  Watchdog(int64_t limit_ns, std::function<void()> late)
      : thread_("hc-watchdog", [this, limit_ns, late = std::move(late)] {
          std::unique_lock lock(mutex_);
          if (!changed_.wait_for(lock, std::chrono::nanoseconds(limit_ns), [this] { return over_; })) late();
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  NamedThread thread_;  // last: joined first
};

void FinalizeAtExit() {
  Process& process = TheProcess();
  const MutexLock lock(process.mutex);
  // A child of fork has inherited this handler, but no MPI.
  if (process.initialised_by != getpid() || process.unfinalized.load() || process.mpi->Finalized()) return;
  constexpr int64_t kLongNs = 30'000'000'000;
  const Watchdog watchdog(kLongNs, [] {
    Say("this process has ended and waits in MPI_Finalize for the other ranks of the job to end; mpiexec can stop it.");
  });
  if (const Status status = process.mpi->Finalize(); !status.ok()) Say(status.message());
}

Status Unsupported(const std::string& text) { return {StatusCode::kUnsupported, text}; }

Status TooFewThreads(const Mpi& mpi, MpiThreads have, MpiThreads need, bool ours) {
  const std::string library = "'" + mpi.path() + "' (" + mpi.Version() + ")";
  const std::string levels = "thread level '" + std::string(MpiThreadsName(have)) + "', horocache needs '" +
                             std::string(MpiThreadsName(need)) + "'";
  if (ours) {
    return Unsupported("the MPI library " + library + " gives " + levels +
                       ". Use a build with threads, or set HOROCACHE_MPI_THREADS_DISABLE=1 if no other thread of the "
                       "program calls MPI.");
  }
  return Unsupported("the MPI library " + library + " was initialised with " + levels +
                     ". Initialise it with MPI_THREAD_MULTIPLE (mpi4py does unless mpi4py.rc.thread_level says "
                     "otherwise), or call horocache's init() first.");
}

Status Initialise(Mpi& mpi, const MpiNeeds& needs) {
  const Watchdog watchdog(needs.timeout_ns, [&] {
    Say("MPI_Init of '" + mpi.path() + "' has waited for the other ranks for " + SecondsText(needs.timeout_ns) +
        " (HOROCACHE_START_TIMEOUT). Does every rank call init(), on every host, with the same MPI library? Ending "
        "this process.");
    _exit(EXIT_FAILURE);
  });
  const StatusOr<MpiThreads> level = mpi.InitThread(needs.threads);
  return level.ok() ? Status::Ok() : Unsupported("'" + mpi.path() + "': " + level.status().message());
}

}  // namespace

StatusOr<Mpi*> AcquireMpi(const MpiNeeds& needs) {
  Process& process = TheProcess();
  const MutexLock lock(process.mutex);
  StatusOr<std::unique_ptr<Mpi>> found = FindMpi(needs.search);  // again each time: another may have been loaded since
  if (!found.ok()) return found.status();
  if (process.mpi == nullptr) process.mpi = std::move(*found);
  Mpi& mpi = *process.mpi;
  if (mpi.Finalized()) {
    return Unsupported("the MPI library '" + mpi.path() +
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
