// The daemon of one rank: creates and starts its parts in one place, and stops them in one place.
//
// Owns all parts. It has no global state, so tests run several runtimes in one process, with an arena on the heap.
// Threads: any.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/knobs.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/ticker.h"
#include "control/selector.h"
#include "cuda/device.h"
#include "cuda/nccl.h"
#include "net/bootstrap/bootstrap.h"
#include "net/bootstrap/launcher_environment.h"
#include "net/failure/peer_monitor.h"
#include "net/shm/arena.h"
#include "net/shm/shared_heap.h"
#include "observe/timeline.h"
#include "program/library.h"
#include "runtime/diagnostics/cause_note.h"
#include "runtime/diagnostics/metrics.h"
#include "runtime/diagnostics/observer.h"
#include "runtime/diagnostics/pass_watch.h"
#include "runtime/diagnostics/stack_signal.h"
#include "runtime/progress/process_sets.h"
#include "runtime/progress/progress_engine.h"
#include "runtime/startup/job.h"
#include "runtime/startup/process_set_factory.h"
#include "runtime/submission/operation_table.h"
#include "runtime/windows/windows.h"

namespace horocache::runtime {

struct RuntimeConfig {
  Knobs knobs;
  net::Identity identity;
  uint32_t epoch = 0;
  std::string version;
  // Shared by runtimes of one process, which then need no bootstrap over a socket; null for real jobs.
  std::shared_ptr<net::Arena> arena = nullptr;
  // The ranks of each process set besides the global one; equal on all ranks.
  std::vector<std::vector<int>> process_sets = {};
  // With `arena`: one arena for each process set.
  std::vector<std::shared_ptr<net::Arena>> set_arenas = {};
  // See JobConfig.
  uint64_t communicator = 0;
  std::vector<int> ranks = {};
  std::shared_ptr<const program::Library> programs = nullptr;  // null: none
  std::shared_ptr<const cuda::Nccl> nccl = nullptr;            // found by Start; null: this rank has none
  UserBackends user_backends = {};
  // Selector rules of a tuning table; rank 0's are used on all ranks.
  std::string tuning = {};
  std::function<void()> on_freed = [] {};  // see OperationTable::Callbacks
};

// The file for a rank's timeline: for rank 1 and "trace.json", "trace.rank1.json". A device such as /dev/null takes the
// timelines of all ranks.
std::string TimelinePath(const std::string& path, int rank);

// Returns kInvalidArgument for errors that Knobs::Parse cannot detect, in selector rules, faults and kernels. `users`
// null: see SelectorFor.
Status CheckKnobs(const Knobs& knobs, const program::Library* programs = nullptr, const UserBackends* users = nullptr,
                  const std::string& tuning = {});

class Runtime {
 public:
  // Starts a rank. `go_on` is called several times a second while this rank waits for others, except inside MPI calls.
  // If it returns false, Start ends with kAborted.
  static StatusOr<std::unique_ptr<Runtime>> Start(RuntimeConfig config, const std::function<bool()>& go_on = nullptr);
  ~Runtime();

  const net::Identity& identity() const { return job_.identity; }
  const Knobs& knobs() const { return config_.knobs; }
  // The metrics, which include every operation that is done.
  const Metrics& metrics() const {
    engine_->AwaitPass();
    return metrics_;
  }
  bool alive() const { return alive_; }
  // True if a rank of the job was lost.
  bool lost_a_rank() const { return engine_->WhyLost().code() == StatusCode::kPeerLost; }
  // Counts a step of an optimizer. The core uses it only for the metrics.
  void CountStep() { metrics_.steps.Add(1); }
  void CountBytesIntoViews(uint64_t bytes) { metrics_.bytes_into_views.Add(bytes); }
  // The version of NCCL that CUDA tensors can use, for example 22809; 0: none.
  int nccl() const { return config_.nccl == nullptr ? 0 : config_.nccl->version(); }
  // 0 without MPI; 1 if one thread at a time may call MPI; 2 if any thread may.
  int mpi() const;

  // Returns a record; the caller fills in request, tensors, splits and owner.
  Operation* NewOperation() { return table_.New(); }
  Operation* NewGroup(std::string_view name) { return table_.NewGroup(name); }
  // Checks and queues the operation; its handle is operation->handle. On an error the record returns to the pool, and
  // `owner` belongs to the caller again. `wait_follows`: the caller waits for the operation next, so no thread is woken
  // for it now.
  Status Submit(Operation* operation, bool wait_follows);
  // To call before Submit for an operation on tensors of this CUDA device, which `stream` computes: they are read once
  // the stream has done what it has to do now. kUnsupported without a CUDA driver, or during a capture of the stream.
  Status AwaitStream(Operation* operation, int device, cuda::StreamHandle stream);
  // Returns the operation of a handle; null if the handle is unknown or consumed.
  Operation* Find(int64_t handle) { return table_.Find(handle); }
  // See ProgressEngine::Wait.
  bool Wait(Operation* operation, int64_t deadline_ns, WaitKind kind, const std::function<bool()>& go_on = nullptr,
            OperationState until = OperationState::kDone) {
    return engine_->Wait(operation, deadline_ns, kind, go_on, until);
  }
  void Recycle(Operation* operation) { table_.Recycle(operation); }
  // See OperationTable::Release. A failure of the operation is logged.
  bool Release(Operation* operation, std::vector<Result>* results) { return table_.Release(operation, results); }
  // See OperationTable::Listen.
  OperationTable::Listens Listen(Operation* operation, const Listener& listener, bool detach) {
    return table_.Listen(operation, listener, detach);
  }
  // See ProgressEngine, as for the next five.
  using Helped = ProgressEngine::Helped;
  void BeginOutsideWait() { engine_->BeginOutsideWait(); }
  void EndOutsideWait() { engine_->EndOutsideWait(); }
  Helped HelpUntil(const std::function<bool()>& done, int64_t deadline_ns) {
    return engine_->HelpUntil(done, deadline_ns);
  }
  void AskDriver() { engine_->AskDriver(); }
  void WakeHelpers() { engine_->WakeHelpers(); }
  // Returns memory for a tensor, in whole cache lines. It is shared with the other ranks of this host, so that
  // collectives work on it in place. If no shared memory is left, it is private, with one warning. It lives as long as
  // the pointer, also after Stop. Returns null if all memory is used up.
  std::shared_ptr<std::byte> Allocate(int64_t bytes);
  // True if the memory is shared with other ranks.
  bool IsShared(const std::byte* memory) { return heap_ != nullptr && heap_->Find(memory) != nullptr; }
  void TakeOwners(std::vector<void*>* owners) { table_.TakeOwners(owners); }

  // The backends of an open process set, in the order of preference; empty if this rank has no such set.
  std::vector<control::BackendTraits> Backends(uint32_t process_set) const HC_EXCLUDES(settings_mutex_);

  // The calls to a backend that the program implements, of a process set.
  struct UserCallsOfSet {
    uint32_t process_set = 0;
    std::string backend;
    std::shared_ptr<data::UserCalls> calls;  // null: none came until the deadline
  };
  // Returns those of a new process set, for which the program starts a thread; kShutDown once the runtime is stopped.
  StatusOr<UserCallsOfSet> TakeUserCalls(int64_t deadline_ns) HC_EXCLUDES(user_calls_mutex_);

  // ---- settings of the set of all ranks, see Note [Settings change in one round] in control/settings.h
  // Rank 0 changes settings on all ranks, soon. kInvalidArgument on another rank, or for a bad text; the reason if the
  // job has ended.
  Status Configure(const std::string& text) HC_EXCLUDES(settings_mutex_);
  struct AppliedSettings {
    uint64_t changes = 0;  // how often this rank has changed its settings
    std::string note;      // the last one
  };
  AppliedSettings settings() const HC_EXCLUDES(settings_mutex_);
  uint64_t settings_changes() const { return settings_changes_.load(); }

  // The ranks of an open process set; empty if there is none with that number.
  std::vector<int> RanksOf(uint32_t number) const { return sets_.OpenRanks(number); }

  // ---- adding and removing process sets: see Note [Process sets at run time] in process_sets.h
  //
  // All ranks of the job call these functions in the same order. To add a set: ProposeSet; ConnectSet when the
  // operation of `handle`, in which the ranks agree, has succeeded; OpenSet when ConnectSet has succeeded on all ranks.
  // To remove it: ProposeRemoval; LeaveSet when its operation has succeeded. `go_on` is called several times a second;
  // if it returns false, the call ends with kAborted.
  uint32_t NextSet() const { return sets_.next(); }
  Status ProposeSet(uint32_t number, std::vector<int> ranks, int64_t* handle);
  // Replaces ProposeSet if only the members know the set. No operation is run; "all ranks" then means all members.
  Status DeclareSet(uint32_t number, std::vector<int> ranks);
  Status ConnectSet(uint32_t number, const std::function<bool()>& go_on = nullptr);
  Status OpenSet(uint32_t number);
  Status ProposeRemoval(uint32_t number, int64_t* handle);
  Status LeaveSet(uint32_t number, const std::function<bool()>& go_on = nullptr);
  // Undoes ProposeSet or DeclareSet, ConnectSet and OpenSet, whichever were called; operations pending in the set fail.
  // All ranks must call it, or none.
  Status DropSet(uint32_t number);

  // ---- windows for one-sided exchanges: see Note [Opening a window] in windows/windows.h
  // All ranks of the process set call these functions in the same order.
  // No `set`: this rank alone.
  StatusOr<WindowBlock> AllocateWindow(std::optional<uint32_t> set, moe::Geometry geometry);
  // `go_on` is called several times a second while ranks of other hosts connect; if it returns false, the call ends
  // with kAborted.
  StatusOr<std::shared_ptr<moe::Window>> ConnectWindow(WindowBlock block, const std::vector<int64_t>& offsets,
                                                       const std::function<bool()>& go_on = nullptr);
  std::string CallsElsewhere(const moe::Window& waiting) { return windows_->CallsElsewhere(waiting); }
  // Logs that a rank waits in an exchange for longer than stall_check_time_seconds.
  void ReportSlowExchange(const std::string& wait);
  // Why exchanges cannot go on; ok if they can, also after the loss or shutdown of a rank, which the window knows.
  Status CheckExchange() const;

  // ---- the timeline of this rank; see observe/timeline.h
  // Rank 0 writes `path`, the other ranks write files next to it, see TimelinePath. Returns kInvalidArgument if a
  // timeline is being written already, or if the file cannot be written.
  Status StartTimeline(const std::string& path, bool mark_rounds);
  void StopTimeline() { timeline_->Stop(); }
  std::shared_ptr<observe::Timeline> timeline() const { return timeline_; }
  // The list of completed operations, for the program.
  observe::OperationLog& log() const { return timeline_->log(); }
  // Enables stacks of the program's threads in stall reports and dumps. Frames of files below `own_folder` count as
  // this library's.
  Status WatchStacks(const StackSource& source, const std::string& own_folder) HC_EXCLUDES(stacks_mutex_);
  // Returns the last events and the pending operations as JSON; see observe/flight_text.h.
  std::string FlightRecord(const std::string& why, const std::string& stacks) const;

  // Logs the path of the flight record, once, if an error was recorded.
  void LogRecordPath() const { observer_->LogRecordPath(); }
  // Aborts the job: pending operations of all ranks fail with kAborted.
  void Abort(const std::string& why);
  // Leaves the job and joins all threads; pending operations fail with kShutDown. Idempotent.
  void Stop();
  // As Stop, for a process that is about to end. Returns true if an exit handler will stop the runtime. The exit code
  // is known there, so the other ranks learn whether this rank has left or failed. The object must then live until the
  // process ends. Returns false if the runtime has been stopped at once instead: if a thread waits for an operation, if
  // MPI may be gone when exit handlers run, or if the job is lost.
  bool StopWithProcess();
  // For the child of a fork: closes the descriptors that the child must not keep. The object must not be used or
  // destroyed afterwards.
  void ForkedChild();

 private:
  Runtime(RuntimeConfig config, Job job);
  JobConfig ConfigOfJob() const { return JobConfigOf(config_); }
  static JobConfig JobConfigOf(const RuntimeConfig& config);
  // Fails if a required program is for another number of ranks than that of the job and its sets.
  Status CheckPrograms() const;
  Status MakeParts(const std::function<Status()>& check);
  void ReportFailedStart(const Status& why);
  Status MakeEngine(const JobConfig& config);
  ProgressEngine::Parts PartsOfEngine();
  StatusOr<SetParts> ConnectAndMakeSet(const JobConfig& config, SetMembership membership);
  Status CheckMpiThreads() const;
  StatusOr<std::unique_ptr<PointToPoint>> MakeMessages(const JobConfig& config);
  Status SubmitProposal(const std::string& name, std::vector<int64_t> ranks, int64_t* handle);
  bool IsMember(uint32_t number) const { return sets_.RankIn(number, job_.identity.rank) >= 0; }
  Status WhyJobLost(bool running) const;
  Status CheckLocalRanks() const;
  std::string Ended(int local_rank, const std::string& how) const;
  void OnLost(int local_rank, const std::string& how);
  void OnLostElsewhere(int rank, const std::string& what);
  observe::TimelineHeader Header() const;
  std::string RecordPath() const;
  std::unique_ptr<Observer> MakeObserver();
  void LookAtDriver();
  void LogStacks(uint32_t process_set, const std::string& stacks) HC_EXCLUDES(stacks_mutex_);
  void NoteError(const Status& why);
  void NoteUnseenFailure(const Status& why, uint32_t process_set);
  void SetCallbacks(ProgressEngine::Parts* parts);
  Status Queue(Operation* operation, bool* first);
  void OnSettings(const control::Settings& settings) HC_EXCLUDES(settings_mutex_);
  void ForgetSelector(uint32_t process_set) HC_EXCLUDES(settings_mutex_);
  Status Check(const Operation& operation) const;
  Status CheckRoute(const Operation& operation) const;
  Status CheckDevice(const Operation& operation) const HC_EXCLUDES(nccl_devices_mutex_);
  void AwaitDevices() const;
  void LeaveJob();
  void OfferUserCalls(uint32_t process_set, const NamedUserCalls& named) HC_EXCLUDES(user_calls_mutex_);
  // Lets the program's threads that run its backends end.
  void CloseUserCalls() HC_EXCLUDES(user_calls_mutex_);
  static void OnExit(int code, void* runtime);

  const RuntimeConfig config_;
  Job job_;
  ProcessSets sets_;
  Mutex connected_mutex_;
  // Connected sets that are not open yet.
  std::map<uint32_t, SetMembership> connected_ HC_GUARDED_BY(connected_mutex_);
  Logger logger_;
  Metrics metrics_;
  Mutex stacks_mutex_;
  std::unique_ptr<StackSignal> stacks_ HC_GUARDED_BY(stacks_mutex_);  // null before WatchStacks
  std::string own_folder_ HC_GUARDED_BY(stacks_mutex_);
  const std::shared_ptr<observe::Timeline> timeline_;
  const std::shared_ptr<cuda::Devices> devices_;
  mutable Mutex nccl_devices_mutex_;
  // The device of this rank's tensors, by process set.
  mutable std::map<uint32_t, int> nccl_devices_ HC_GUARDED_BY(nccl_devices_mutex_);
  mutable Mutex settings_mutex_;
  std::map<uint32_t, control::Selector> selectors_ HC_GUARDED_BY(settings_mutex_);  // by process set, as at its start
  AppliedSettings settings_ HC_GUARDED_BY(settings_mutex_);
  std::atomic<uint64_t> settings_changes_{0};
  Mutex user_calls_mutex_;
  std::condition_variable user_calls_came_;
  std::deque<UserCallsOfSet> user_calls_ HC_GUARDED_BY(user_calls_mutex_);  // that the program has not taken
  std::vector<std::weak_ptr<data::UserCalls>> all_user_calls_ HC_GUARDED_BY(user_calls_mutex_);
  bool user_calls_closed_ HC_GUARDED_BY(user_calls_mutex_) = false;
  CauseNote cause_;
  observe::FlightRecorder recorder_;
  // Of the thread of driver_watch_.
  PassWatch pass_watch_;
  bool watches_leaving_ = false;
  std::unique_ptr<Observer> observer_;
  OperationTable table_{
      &recorder_,
      &metrics_,
      {.on_failure = [this](const Status& why) { NoteError(why); },
       .on_unseen_failure = [this](const Status& why, uint32_t process_set) { NoteUnseenFailure(why, process_set); },
       .on_freed = config_.on_freed}};
  std::shared_ptr<net::SharedHeap> heap_;  // null without shared regions
  std::unique_ptr<Windows> windows_;
  std::atomic<bool> warned_private_{false};
  std::set<uint32_t> told_unseen_;                  // process sets; of the driving thread
  std::unique_ptr<net::HostMonitor> host_monitor_;  // null on one host
  std::unique_ptr<ProgressEngine> engine_;
  std::unique_ptr<net::PeerMonitor> peer_monitor_;
  std::atomic<bool> alive_{false}, leaving_{false};
  std::atomic<pid_t> leaves_with_{0};     // the process whose exit handler stops this runtime; 0: none
  std::unique_ptr<Ticker> driver_watch_;  // last: it uses the members above; null if stalls are not checked
};

}  // namespace horocache::runtime
