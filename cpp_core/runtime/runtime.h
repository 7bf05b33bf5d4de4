// One rank's daemon: puts the parts together, starts them in one place and stops them in one place.
//
// Owns everything; there are no singletons, so tests run several runtimes in one process (with an arena on the heap).
// Threads: any.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/knobs.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "net/arena.h"
#include "net/bootstrap.h"
#include "net/identity.h"
#include "net/liveness.h"
#include "net/region_heap.h"
#include "observe/timeline.h"
#include "program/library.h"
#include "runtime/cause_note.h"
#include "runtime/coordinator_loop.h"
#include "runtime/job.h"
#include "runtime/make_set.h"
#include "runtime/metrics.h"
#include "runtime/observer.h"
#include "runtime/operation_table.h"
#include "runtime/process_sets.h"
#include "runtime/stack_signal.h"

namespace horocache::runtime {

struct RuntimeConfig {
  Knobs knobs;
  net::Identity identity;
  uint32_t epoch = 0;
  std::string version;
  // Shared by the runtimes of one process instead of a start-up over a socket; null for real jobs.
  std::shared_ptr<net::Arena> arena = nullptr;
  // Ranks of each process set besides the global one, equal on all ranks.
  std::vector<std::vector<int>> process_sets = {};
  // With `arena`: one for each process set.
  std::vector<std::shared_ptr<net::Arena>> set_arenas = {};
  // See JobConfig.
  uint64_t communicator = 0;
  std::vector<int> ranks = {};
  std::shared_ptr<const program::Library> programs = nullptr;  // null: none
};

// Of rank 1, for "trace.json": "trace.rank1.json". A device, as /dev/null, takes those of all ranks.
std::string TimelinePath(const std::string& path, int rank);

// kInvalidArgument for what Knobs::Parse cannot see: rules of the selector, faults, kernels.
Status CheckKnobs(const Knobs& knobs, const program::Library* programs = nullptr);

class Runtime {
 public:
  // `go_on` is asked several times a second while other ranks are waited for, but within MPI; false ends that with
  // kAborted.
  static StatusOr<std::unique_ptr<Runtime>> Start(RuntimeConfig config, const std::function<bool()>& go_on = nullptr);
  ~Runtime();

  const net::Identity& identity() const { return job_.identity; }
  const Knobs& knobs() const { return config_.knobs; }
  // With whatever operations that are done have added to them.
  const Metrics& metrics() const {
    loop_->AwaitPass();
    return metrics_;
  }
  bool alive() const { return alive_; }
  // A step of an optimizer, for the metrics; the core needs no notion of it.
  void CountStep() { metrics_.steps.Add(1); }
  void CountPlaced(uint64_t bytes) { metrics_.bytes_placed.Add(bytes); }
  // 0 without MPI, 1 if one thread at a time may call it, 2 if any may.
  int mpi() const;

  // A record to fill in: request, tensors, splits, owner.
  Operation* NewOperation() { return table_.New(); }
  Operation* NewGroup(std::string_view name) { return table_.NewGroup(name); }
  // Checks and queues it; the handle is operation->handle. After an error the record is back in the pool and `owner` is
  // the caller's again. `wait_follows`: the caller waits for it next, so that nobody is woken for it now.
  Status Submit(Operation* operation, bool wait_follows);
  // The operation of a handle, or null if it is unknown or was consumed.
  Operation* Find(int64_t handle) { return table_.Find(handle); }
  // See CoordinatorLoop::Wait.
  bool Wait(Operation* operation, int64_t deadline_ns, WaitKind kind, const std::function<bool()>& go_on = nullptr) {
    return loop_->Wait(operation, deadline_ns, kind, go_on);
  }
  void Recycle(Operation* operation) { table_.Recycle(operation); }
  // Memory for a tensor, of whole cache lines: shared with the other ranks of this host, so that collectives work on it
  // where it is. Private memory, with one warning, where there is none left to share. It lives as long as the pointer,
  // also after Stop. Null if there is no memory at all.
  std::shared_ptr<std::byte> Allocate(int64_t bytes);
  // Whether the memory is shared with other ranks.
  bool IsShared(const std::byte* memory) { return heap_ != nullptr && heap_->Find(memory) != nullptr; }
  void TakeOwners(std::vector<void*>* owners) { table_.TakeOwners(owners); }

  // Of a process set; empty where there is none of that number.
  std::vector<int> RanksOf(uint32_t number) const { return sets_.OpenRanks(number); }

  // ---- process sets that come and go: see Note [Process sets at run time] in process_sets.h
  // Every rank of the job calls these, in the same order. `handle` is that of the operation in which the ranks agree;
  // MeetSet, then EnterSet when it has succeeded on all ranks, and LeaveSet follow when the operation has succeeded.
  // `go_on` is asked several times a second; false ends the call with kAborted.
  uint32_t NextSet() const { return sets_.next(); }
  Status ProposeSet(uint32_t number, std::vector<int> ranks, int64_t* handle);
  // Instead, by the members alone: no operation, and "all ranks" below means the members.
  Status DeclareSet(uint32_t number, std::vector<int> ranks);
  Status MeetSet(uint32_t number, const std::function<bool()>& go_on = nullptr);
  Status EnterSet(uint32_t number);
  Status ProposeRemoval(uint32_t number, int64_t* handle);
  Status LeaveSet(uint32_t number, const std::function<bool()>& go_on = nullptr);
  // Undoes the first three, however far they came; what is pending in the set fails. On all ranks, or none.
  Status DropSet(uint32_t number);

  // ---- the timeline of this rank; see observe/timeline.h
  // Rank 0 writes `path`, the others next to it; see TimelinePath. kInvalidArgument if one is written already, or
  // cannot be.
  Status StartTimeline(const std::string& path, bool mark_rounds);
  void StopTimeline() { timeline_->Stop(); }
  // From now on stall reports and dumps show the stacks of the program's threads. Calls of files below `own_folder` are
  // this library's own.
  Status WatchStacks(const StackSource& source, const std::string& own_folder) HC_EXCLUDES(stacks_mutex_);
  // The last events, and what is pending, as JSON; see observe/flight_text.h.
  std::string FlightRecord(const std::string& why, const std::string& stacks) const;

  // Says once where the flight record is, if there is one.
  void TellRecord() const { observer_->TellPath(); }
  // All ranks' pending operations fail with kAborted.
  void Abort(const std::string& why);
  // Leaves the job and joins all threads; what is pending fails with kShutDown. Idempotent.
  void Stop();
  // The same for a process that is about to end. Its exit code is known when it calls exit(): then the others hear that
  // this rank has left, or that it has failed. Returns true then; the object must live until the end.
  // False: it has been stopped at once, because somebody waits, or MPI may not be there any more at exit().
  bool StopWithProcess();
  // In the child of a fork: closes what must not be kept open. The object must not be used, or destroyed, afterwards.
  void ForkedChild();

 private:
  Runtime(RuntimeConfig config, Job job);
  JobConfig ConfigOfJob() const { return JobConfigOf(config_); }
  static JobConfig JobConfigOf(const RuntimeConfig& config);
  // Whether the job has the number of ranks that each program needs.
  Status CheckPrograms() const;
  Status MakeParts(const std::function<Status()>& check);
  void TellNotStarted(const Status& why);
  Status MakeLoop(const JobConfig& config);
  CoordinatorLoop::Parts PartsOfLoop();
  StatusOr<SetParts> ConnectAndMakeSet(const JobConfig& config, SetSite site);
  Status CheckMpiThreads() const;
  StatusOr<std::unique_ptr<PointToPoint>> MakeMessages(const JobConfig& config);
  Status SubmitProposal(const std::string& name, std::vector<int64_t> ranks, int64_t* handle);
  bool IsMember(uint32_t number) const { return sets_.RankIn(number, job_.identity.rank) >= 0; }
  Status WhyJobLost(bool running) const;
  Status LostHere() const;
  std::string Ended(int local_rank, const std::string& how) const;
  void OnLost(int local_rank, const std::string& how);
  observe::TimelineHeader Header() const;
  std::string RecordPath() const;
  std::unique_ptr<Observer> MakeObserver();
  void TellStacks(uint32_t process_set, const std::string& stacks) HC_EXCLUDES(stacks_mutex_);
  void NoteError(const Status& why);
  void AddNews(CoordinatorLoop::Parts* parts);
  Status Queue(Operation* operation, bool* first);
  Status Check(const Operation& operation) const;
  Status CheckRoute(const Operation& operation) const;
  void LeaveJob();
  static void OnExit(int code, void* runtime);

  const RuntimeConfig config_;
  Job job_;
  ProcessSets sets_;
  Mutex met_mutex_;
  std::map<uint32_t, SetSite> met_ HC_GUARDED_BY(met_mutex_);  // of sets whose ranks on this host have met
  Logger logger_;
  Metrics metrics_;
  Mutex stacks_mutex_;
  std::unique_ptr<StackSignal> stacks_ HC_GUARDED_BY(stacks_mutex_);  // null where nobody knows them
  std::string own_folder_ HC_GUARDED_BY(stacks_mutex_);
  const std::shared_ptr<observe::Timeline> timeline_;
  CauseNote cause_;
  observe::FlightRecorder recorder_;
  std::unique_ptr<Observer> observer_;
  OperationTable table_{&recorder_, &metrics_, [this](const Status& why) { NoteError(why); }};
  std::shared_ptr<net::RegionHeap> heap_;  // null where nothing is shared
  std::atomic<bool> warned_private_{false};
  std::unique_ptr<net::HostsWatch> watch_;  // null on one host
  std::unique_ptr<CoordinatorLoop> loop_;
  std::unique_ptr<net::Liveness> liveness_;
  std::atomic<bool> alive_{false};
  std::atomic<pid_t> leaves_with_{0};  // the process at whose end it leaves the job
};

}  // namespace horocache::runtime
