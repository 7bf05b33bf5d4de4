// The progress engine of a rank: the progress thread, and the progress lock that it shares with waiting threads.
//
// Note [The progress lock]
// A rank has one progress lock, a try-lock (class ProgressLock). The thread that holds it is the driving thread. It
// drives everything of this rank that threads do not share: the process sets that the rank is a member of, and its
// messages. The progress thread takes the lock when the doorbell rings. A thread that waits for an operation takes the
// lock if it is free, so that a blocking call needs no hand-over to another thread. The driving thread never blocks,
// except in its own bounded sleep on the doorbell. If it releases the lock with work left, it rings its own doorbell,
// and the progress thread continues.
//
// Note [Exceptions while driving]
// Memory may run out while the driving thread works, and leave its state half changed. No exception leaves the engine;
// it ends this rank's part of the job instead. The state of sets and messages is not used again. Every operation fails
// with kOutOfMemory (kInternal for any other exception), wherever it is queued. The other ranks read the reason in the
// arena; writing it there takes no memory.
//
// Threads: Run on the progress thread; the public functions on any thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/stillness.h"
#include "base/thread.h"
#include "net/failure/host_monitor.h"
#include "net/shm/arena.h"
#include "runtime/diagnostics/fault.h"
#include "runtime/diagnostics/metrics.h"
#include "runtime/diagnostics/user_time.h"
#include "runtime/p2p/engine.h"
#include "runtime/progress/set_engine.h"
#include "runtime/progress/yielder.h"
#include "runtime/submission/operation_table.h"

namespace horocache::runtime {

// The progress lock of a rank, see Note [The progress lock].
class HC_CAPABILITY("progress lock") ProgressLock {
 public:
  bool TryTake() HC_TRY_ACQUIRE(true) { return !held_.exchange(true); }
  // Sequentially consistent: a driving thread that checks the submission queue after Release sees every operation that
  // was queued before another thread's TryTake failed.
  void Release() HC_RELEASE() { held_.exchange(false); }

 private:
  std::atomic<bool> held_{false};
};

// The behaviour of a waiting thread, for the deadlock check.
enum class WaitKind {
  kLimited,        // the thread continues after a time limit
  kForGood,        // the thread does nothing else until the operation is done
  kForGoodInPool,  // as kForGood, but other threads of its pool may still submit operations of the same program
};

struct ProgressConfig {
  int64_t spin_ns = 0;
  int64_t yield_ns = 0;
  int64_t linger_ns = 0;      // how long a submission may wait for others that join its round, at first
  int64_t full_bytes = 0;     // with this many bytes, submissions do not wait for others, at first; 0: no limit
  bool spare_core = true;     // true if the progress thread has a core while the ranks of the host compute
  bool waiter_drives = true;  // true if a waiting thread takes the progress lock when it is free
};

class ProgressEngine {
 public:
  struct Parts {
    std::vector<SetParts> sets;  // the sets of this rank; the global set is first
    std::unique_ptr<PointToPoint> messages;
    int rank = 0;
    net::Doorbell doorbell;
    FaultInjector faults;
    observe::Timeline* timeline = nullptr;
    std::function<void(int64_t now_ns)> on_computes;  // called when the program has computed lately; may be null
    std::function<void(uint32_t process_set)> on_stack_request;  // see SetContext
    std::function<void()> on_operation_abandoned;
    std::function<void(const Status& why)> on_end;
    std::function<void(const control::Settings& settings)> on_settings;  // see SetContext
    net::HostMonitor* host_monitor = nullptr;                            // null on one host; outlives the engine
    // Called by the driving thread when a rank of another host is lost.
    std::function<void(int rank, const std::string& what)> on_lost_elsewhere;
    // Returns why another rank of this host has given up its part of the job while this rank continues; ok: none has.
    // May be null.
    std::function<Status()> given_up_elsewhere;
    // Tells the ranks of this host that this rank has given up its part of the job. Takes no memory. May be null.
    std::function<void(const Status&)> report_given_up;
  };
  static constexpr int kEverySet = -1;  // a rank argument of Lose

  ProgressEngine(const ProgressConfig& config, Parts parts, OperationTable* table, Metrics* metrics,
                 const Logger* logger);
  ~ProgressEngine();

  // ---- any thread
  // Registers the calling thread as a submitter; called before it submits.
  void NoteSubmitter() HC_EXCLUDES(threads_mutex_);
  // Reports a submission of `bytes` bytes. `wake`: a driving thread must be woken for it, because the caller will not
  // drive the rank next. `urgent`: the operation does not wait for others that join its round. Fails only for an
  // injected fault.
  Status NoteSubmission(bool wake, bool urgent, int64_t bytes);
  // Drives the rank or sleeps until the operation has come to `until`. Returns false at the deadline (steady-clock ns),
  // or when `go_on` returns false. `go_on` is called several times a second without the progress lock; it may be null.
  bool Wait(Operation* operation, int64_t deadline_ns, WaitKind kind, const std::function<bool()>& go_on,
            OperationState until);
  // ---- any thread that waits for something else that follows from operations, such as a function that uses a result.
  // While there is one, submissions do not wait for others that join their round.
  void BeginOutsideWait();
  void EndOutsideWait();
  // Drives the rank until done() or the deadline. kDone: done() is true, and the wait has ended, too. kBusy: another
  // thread drives, and knows of the wait. WakeHelpers must be called when done() becomes true.
  enum class Helped { kBusy, kDone, kLate };
  Helped HelpUntil(const std::function<bool()>& done, int64_t deadline_ns);
  void AskDriver() { doorbell_.Ring(); }  // has the driving thread look for waits
  void WakeHelpers() {
    if (helping_.load()) doorbell_.Ring();
  }
  // Handles the loss of a rank of the job: every pending operation of its sets, and every message, fails with `why`.
  // kEverySet stands for all sets.
  void Lose(int rank, const Status& why);
  // ---- any thread: sets added and removed at run time, see Note [Process sets at run time] in process_sets.h
  // Adds a set. Returns when the driving thread has taken it, with the job's status.
  Status Add(SetParts set);
  // Leaves a set and waits until it is removed. The set's last round closes it for all members; operations agreed on
  // before that run first. Returns the reason if the set was lost meanwhile: kStall names ranks that did not leave.
  // Returns kAborted if `go_on`, which is called several times a second, returns false; the set is then removed later.
  Status Remove(uint32_t number, const std::function<bool()>& go_on);
  // Fails everything pending in a set and removes it. Does nothing if this rank has no such set.
  void Drop(uint32_t number);
  // Returns why the job has ended; ok while it runs.
  Status JobEnd() HC_EXCLUDES(orders_mutex_);
  // Returns why the job is lost, including an abort by this rank as soon as Abort is called; ok otherwise.
  Status WhyLost() HC_EXCLUDES(orders_mutex_);

  // True if a thread waits for an operation.
  bool AnybodyWaits() const { return waiting_.load() > 0; }
  // Passes begun plus passes ended: odd during a pass.
  uint32_t passes() const { return passes_.load(std::memory_order_acquire); }
  // Waits until the current pass, if any, has published its counters, at most a tenth of a second. An operation is done
  // before its pass ends.
  void AwaitPass() const;

  // Logs `text` on all ranks of a set; does nothing if the set is gone.
  void SendNote(uint32_t process_set, const std::string& text) HC_EXCLUDES(orders_mutex_);
  // Rank 0: changes settings of the set of all ranks; see Note [Settings change in one round] in control/settings.h.
  void Configure(const std::string& settings) HC_EXCLUDES(orders_mutex_);
  // Aborts the job: every process set ends on every rank, with this rank and `why` as the reason.
  void Abort(const std::string& why);
  // Announces that this rank leaves the job. Returns when all ranks have seen it and every agreed operation has run, or
  // at the deadline.
  void Leave(int64_t deadline_ns);
  // Joins the progress thread; pending operations fail with kShutDown. Returns why the job has ended.
  Status Stop();

 private:
  static constexpr int64_t kNowhere = -1;
  // Nap between two checks whether an order was taken or the progress lock is free.
  static constexpr int64_t kOrderNapNs = 100'000;

  // One pass over all sets and messages; true if anything moved.
  bool Step(int64_t now_ns) HC_REQUIRES(progress_lock_);
  bool StepAll(int64_t now_ns) HC_REQUIRES(progress_lock_);
  void TakeSubmissions(int64_t now_ns) HC_REQUIRES(progress_lock_);
  void TakeOrders() HC_REQUIRES(progress_lock_);
  // Ends the sets for which `ends` is true. Their devices stop at the same time.
  void EndSets(const Status& why, const std::function<bool(const SetEngine&)>& ends) HC_REQUIRES(progress_lock_);
  void OnSettings(const control::Settings& settings);
  void LoseRank(int rank, const Status& why, int64_t now_ns) HC_REQUIRES(progress_lock_);
  // Takes news about ranks of other hosts.
  void StepHostMonitor(int64_t now_ns) HC_REQUIRES(progress_lock_);
  void TakeWaits() HC_REQUIRES(progress_lock_);
  void AddSet(SetParts parts) HC_REQUIRES(progress_lock_);
  SetEngine* SetOf(uint32_t number) const HC_REQUIRES(progress_lock_);  // null if this rank is not a member
  void TakeSetOrders() HC_REQUIRES(progress_lock_);
  void EraseLeft() HC_REQUIRES(progress_lock_);
  // Removes a set and hands it to the thread that requested the removal, see `gone_`.
  void Erase(uint32_t number, const Status& outcome) HC_REQUIRES(progress_lock_);
  void NoteJobEnd() HC_REQUIRES(progress_lock_);
  void AbortSets(const std::string& why) HC_REQUIRES(progress_lock_);
  void SpreadAbort() HC_REQUIRES(progress_lock_);
  // Takes what was submitted, and says goodbye. Why the job has ended.
  Status EndInOrder() HC_REQUIRES(progress_lock_);
  const Status& End() const HC_REQUIRES(progress_lock_);  // why the job has ended; ok while it runs
  // See Note [Exceptions while driving].
  void GiveUp(const std::exception& thrown) HC_REQUIRES(progress_lock_);
  bool StepGivenUp() HC_REQUIRES(progress_lock_);
  void CheckGivenUpElsewhere(int64_t now_ns) HC_REQUIRES(progress_lock_);
  void CheckAll(int64_t now_ns) HC_REQUIRES(progress_lock_);
  bool HasMessagesUnderWay() HC_REQUIRES(progress_lock_);
  bool StepMessages(int64_t now_ns) HC_REQUIRES(progress_lock_);
  void PublishMetrics() HC_REQUIRES(progress_lock_);
  bool LanesBusy() const HC_REQUIRES(progress_lock_);
  bool Ended() const HC_REQUIRES(progress_lock_);

  // Steps until `finished` or the deadline; sleeps on the doorbell between steps.
  void Drive(uint32_t who, int64_t deadline_ns, const std::function<bool()>& finished) HC_REQUIRES(progress_lock_);
  // How long the driving thread polls before it sleeps.
  int64_t PatienceNs() const HC_REQUIRES(progress_lock_);
  // True if a running operation belongs to a library that makes progress only when it is called, such as MPI.
  bool DrivesLibrary() const HC_REQUIRES(progress_lock_);
  // Spins, then yields, as long as a peer may answer soon; true if something moved or `finished`.
  bool StepPatiently(const std::function<bool()>& finished) HC_REQUIRES(progress_lock_);
  void Sleep(uint32_t who, int64_t deadline_ns, const std::function<bool()>& finished) HC_REQUIRES(progress_lock_);
  // Reports operations and messages that are overdue, and fails them after the limit.
  void CheckOverdue(int64_t now_ns) HC_REQUIRES(progress_lock_);
  uint32_t Armed(uint32_t who) const HC_REQUIRES(progress_lock_);
  int64_t SleepNs(int64_t now_ns, int64_t deadline_ns) HC_REQUIRES(progress_lock_);
  int64_t LongestNapNs(int64_t now_ns) const HC_REQUIRES(progress_lock_);
  void HandBack() HC_RELEASE(progress_lock_);
  void StepOn() HC_REQUIRES(progress_lock_);
  bool AnyWaits() const { return waiting_.load() > 0 || outside_waits_.load() > 0; }
  void Run();
  // Detects a certain deadlock on this rank's side: returns the process set for whose operations this rank waits if no
  // thread of the process will submit anything more by itself, else kNowhere. Two cases count, once they have lasted
  // for kStuckNs:
  //
  // * Every living thread that ever submitted waits for good, and no other thread is about to submit for the first
  //   time: the main thread sleeps until another thread wakes it, and no thread computes.
  // * Some threads wait for good, and all other threads of the process sleep until another thread wakes them. This
  //   covers programs that submit from a pool, whose threads mostly sleep.
  //
  // See Stillness. All waits must be in one set, because a thread that waits for another set's operation or for a
  // message may still submit what this set lacks.
  int64_t StuckIn(int64_t now_ns) HC_REQUIRES(progress_lock_);
  int64_t WhereSubmittersWait(int64_t now_ns) HC_REQUIRES(progress_lock_) HC_EXCLUDES(threads_mutex_);
  bool RestIsStill(int64_t now_ns, const std::vector<pid_t>& waiting, const std::vector<pid_t>& submitters,
                   Stir allowed) HC_REQUIRES(progress_lock_);
  bool TryTakePatiently(const std::function<bool()>& finished) HC_TRY_ACQUIRE(true, progress_lock_);
  bool WaitSlice(Operation* operation, OperationState until, int64_t deadline_ns);
  void StartWaiting(const Operation* operation, WaitKind kind) HC_EXCLUDES(threads_mutex_);
  void StopWaiting() HC_EXCLUDES(threads_mutex_);

  const ProgressConfig config_;
  std::atomic<int64_t> linger_ns_, full_bytes_;  // see ProgressConfig
  std::atomic<int64_t> gathered_bytes_{0};       // of submissions since no set has had any that wait for others
  ProgressLock progress_lock_;
  Yielder yielder_;
  const FaultInjector faults_;
  const SetContext context_;
  std::vector<std::unique_ptr<SetEngine>> sets_ HC_GUARDED_BY(progress_lock_);  // the sets of this rank, oldest first
  std::vector<SetEngine*> by_number_ HC_GUARDED_BY(progress_lock_);             // by set number; null: not a member
  std::vector<uint32_t> leaving_ HC_GUARDED_BY(progress_lock_);  // numbers of the sets that are being removed
  // Removed sets whose memory a library may still use. It may do so until the process ends.
  std::vector<std::unique_ptr<SetEngine>> parked_ HC_GUARDED_BY(progress_lock_);
  // The sets that GiveUp abandoned. Destroyed with this object, because a library may use their memory.
  std::vector<std::unique_ptr<SetEngine>> half_done_ HC_GUARDED_BY(progress_lock_);
  // Counters of removed sets.
  control::ControllerCounters past_counters_ HC_GUARDED_BY(progress_lock_);
  data::DataCounters past_data_ HC_GUARDED_BY(progress_lock_);
  const std::unique_ptr<PointToPoint> messages_ HC_PT_GUARDED_BY(progress_lock_);
  const std::function<void(const control::Settings&)> on_settings_;
  net::HostMonitor* const host_monitor_ HC_PT_GUARDED_BY(progress_lock_);  // null on one host
  const std::function<void(int, const std::string&)> on_lost_elsewhere_;
  std::vector<Operation*> drained_ HC_GUARDED_BY(progress_lock_);
  std::vector<int> blamed_ HC_GUARDED_BY(progress_lock_);  // the ranks that this rank waits for while it sleeps
  // Limit of a sleep while news may arrive without a ring of the doorbell. Doubles with each sleep until something
  // moves.
  int64_t nap_ns_ HC_GUARDED_BY(progress_lock_) = 0;
  int64_t moved_ns_ HC_GUARDED_BY(progress_lock_) = 0;  // time of the last movement
  // True if collectives were submitted since the progress thread last slept. A backward pass submits many, one by one.
  // So the progress thread then takes one short nap before it sleeps until the doorbell rings.
  bool expects_more_ HC_GUARDED_BY(progress_lock_) = false;
  // Since when a thread has waited with nothing submitted or agreed on; 0: not the case.
  int64_t still_since_ns_ HC_GUARDED_BY(progress_lock_) = 0;
  // Result and time of the last check of the process's threads.
  Stillness stillness_ HC_GUARDED_BY(progress_lock_);
  int64_t looked_ns_ HC_GUARDED_BY(progress_lock_) = 0;
  bool rest_is_still_ HC_GUARDED_BY(progress_lock_) = false;

  // While one exists, the holder of the progress lock may call libraries.
  class Pass {
   public:
    explicit Pass(std::atomic<uint32_t>* passes) : passes_(*passes) { Count(); }
    ~Pass() { Count(); }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    void Count() { passes_.store(passes_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
    std::atomic<uint32_t>& passes_;
  };
  std::atomic<uint32_t> passes_{0};

  net::Doorbell doorbell_;
  OperationTable* const table_;
  Metrics* const metrics_;

  // Orders from other threads to the driving thread.
  std::atomic<bool> ordered_{false};
  Mutex orders_mutex_;
  struct Loss {
    int rank;
    Status why;
  };
  std::vector<Loss> losses_ HC_GUARDED_BY(orders_mutex_);
  std::string abort_ HC_GUARDED_BY(orders_mutex_);
  std::vector<std::pair<uint32_t, std::string>> notes_ HC_GUARDED_BY(orders_mutex_);
  std::vector<std::string> settings_ HC_GUARDED_BY(orders_mutex_);
  bool leave_ HC_GUARDED_BY(orders_mutex_) = false;
  struct SetOrder {
    enum class Kind { kAdd, kLeave, kDrop } kind;
    uint32_t number;
    std::unique_ptr<SetParts> parts = nullptr;  // for kAdd only
  };
  struct Gone {
    uint32_t number;
    std::unique_ptr<SetEngine> set;  // null if it is in parked_
    Status outcome;
  };
  void Order(SetOrder order) HC_EXCLUDES(orders_mutex_);
  std::unique_ptr<Gone> TakeGone(uint32_t number) HC_EXCLUDES(orders_mutex_);
  void DestroyUnclaimed() HC_EXCLUDES(orders_mutex_);
  std::vector<SetOrder> set_orders_ HC_GUARDED_BY(orders_mutex_);
  uint64_t set_orders_placed_ HC_GUARDED_BY(orders_mutex_) = 0;
  std::atomic<uint64_t> set_orders_taken_{0};
  // Removed sets. The thread that requested a removal destroys the set, because destroying a link may wait for goodbyes
  // from peers, and the driving thread must not wait.
  std::vector<std::unique_ptr<Gone>> gone_ HC_GUARDED_BY(orders_mutex_);
  std::vector<uint32_t> unclaimed_ HC_GUARDED_BY(orders_mutex_);  // sets whose Remove was interrupted
  Status job_end_ HC_GUARDED_BY(orders_mutex_);
  std::string aborted_ HC_GUARDED_BY(orders_mutex_);      // the reason passed to Abort
  bool job_ended_ HC_GUARDED_BY(progress_lock_) = false;  // true if job_end_ is set
  bool aborts_ HC_GUARDED_BY(progress_lock_) = false;
  UserTime user_time_ HC_GUARDED_BY(progress_lock_);
  const std::function<void(int64_t)> on_computes_;
  Status given_up_ HC_GUARDED_BY(progress_lock_);  // why this rank has given up its part of the job; ok: it has not
  std::atomic<bool> gave_up_{false};
  int64_t given_up_elsewhere_ns_ HC_GUARDED_BY(progress_lock_) = 0;     // since when another rank has; 0: none has
  std::unique_ptr<std::byte[]> reserve_ HC_GUARDED_BY(progress_lock_);  // freed by GiveUp, which needs some memory
  const std::string own_rank_;
  const std::function<Status()> given_up_elsewhere_fn_;
  const std::function<void(const Status&)> report_given_up_;

  // The threads that submit and that wait, for the deadlock check.
  mutable Mutex threads_mutex_;
  std::vector<pid_t> submitters_ HC_GUARDED_BY(threads_mutex_);
  struct Waiter {
    pid_t thread;
    const Operation* operation;
    int64_t waits_in;  // a copy, because the record may be reused before the wait ends
    WaitKind kind;
  };
  std::vector<Waiter> waiters_ HC_GUARDED_BY(threads_mutex_);
  std::atomic<bool> waits_changed_{false};  // true if the waits changed since the sets were informed
  std::atomic<pid_t> last_submitter_{0};
  std::atomic<int> waiting_{0};
  std::atomic<int> outside_waits_{0};
  std::atomic<bool> helping_{false};  // a thread is in HelpUntil
  // True while the progress thread sleeps no longer than linger_ns. It checks the queue afterwards, so submissions need
  // not wake it.
  std::atomic<bool> lingers_{false};
  std::atomic<bool> stop_{false};
  NamedThread thread_;  // last, because it uses all members above
};

}  // namespace horocache::runtime
