// The background thread and the one role it shares with waiting threads.
//
// Note [The role]
// Whoever holds the role drives everything of this rank that is not shared: the process sets that it is a member of,
// and its messages. It is passed by one try-lock. The coordinator thread takes it when the doorbell rings; a thread
// that waits for an operation takes it if it is free, so that a blocking call needs no hand-over to another thread.
// Nothing blocks while holding the role, but for the holder's own bounded sleep on the doorbell. A holder that leaves
// work behind rings its own doorbell, and the coordinator thread goes on.
//
// Note [Exceptions in a pass]
// Memory may run out while the holder of the role works, and then things are left half done. No exception leaves the
// loop: this rank's part of the job ends there. What the sets and messages know is not looked at again, every operation
// fails with kOutOfMemory, whoever knew of it, and the other ranks read in the arena why, which takes no memory.
//
// Threads: Run on the coordinator thread; Wait on any; Notify and Lose on any.
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
#include "net/arena.h"
#include "net/hosts_watch.h"
#include "runtime/fault.h"
#include "runtime/metrics.h"
#include "runtime/operation_table.h"
#include "runtime/point_to_point.h"
#include "runtime/set_loop.h"
#include "runtime/user_time.h"
#include "runtime/yielder.h"

namespace horocache::runtime {

class HC_CAPABILITY("role") Role {
 public:
  bool TryTake() HC_TRY_ACQUIRE(true) { return !held_.exchange(true); }
  // In one order with all else: who looks at the queue after it sees what was there when somebody could not take it.
  void Release() HC_RELEASE() { held_.exchange(false); }

 private:
  std::atomic<bool> held_{false};
};

// What a wait says of its thread.
enum class WaitKind {
  kLimited,        // it goes on after a while
  kForGood,        // it does nothing else until the operation is done
  kForGoodInPool,  // the same, but other threads of its pool may submit operations of the same program meanwhile
};

struct LoopConfig {
  int64_t spin_ns = 0;
  int64_t yield_ns = 0;
  int64_t linger_ns = 0;      // how long what was submitted may wait for more
  bool spare_core = true;     // for the coordinator thread, while the ranks of the host compute
  bool waiter_drives = true;  // a thread that waits takes the role where it can
};

class CoordinatorLoop {
 public:
  struct Parts {
    std::vector<SetParts> sets;  // that this rank is a member of; the first is the global one
    std::unique_ptr<PointToPoint> messages;
    int rank = 0;
    net::Doorbell doorbell;
    FaultInjector faults;
    observe::Timeline* timeline = nullptr;
    std::function<void(int64_t now_ns)> on_computes;        // the program's threads have run lately; may be null
    std::function<void(uint32_t process_set)> on_question;  // see SetContext
    std::function<void()> on_given_up;
    std::function<void(const Status& why)> on_lost;
    net::HostsWatch* watch = nullptr;  // on several hosts; outlives the loop
    // A rank of another host is lost; by the holder of the role.
    std::function<void(const std::string& what)> on_lost_elsewhere;
    // Why a rank of this host does nothing any more though the job goes on here; ok if there is none. May be null.
    std::function<Status()> given_up_elsewhere;
    // Tells the ranks of this host that this rank does nothing any more; takes no memory. May be null.
    std::function<void(const Status&)> tell_given_up;
  };
  static constexpr int kEverySet = -1;  // for Lose

  CoordinatorLoop(const LoopConfig& config, Parts parts, OperationTable* table, Metrics* metrics, const Logger* logger);
  ~CoordinatorLoop();

  // ---- any thread
  // The calling thread is about to submit.
  void NoteSubmitter() HC_EXCLUDES(threads_mutex_);
  // Something was submitted; `wake`: nobody else is going to drive this rank now; `urgent`: it does not wait for others
  // to come along. Not ok only for an injected fault.
  Status NoteSubmission(bool wake, bool urgent);
  // Drives or sleeps until the operation is done; false at the deadline (steady-clock ns), or when `go_on`, which is
  // asked several times a second without the role, says no. `go_on` may be null.
  bool Wait(Operation* operation, int64_t deadline_ns, WaitKind kind, const std::function<bool()>& go_on);
  // A rank of the job is gone: everything pending in its sets fails with `why`, and every message. kEverySet: in all
  // sets.
  void Lose(int rank, const Status& why);
  // ---- any thread: sets that come and go, see Note [Process sets at run time] in process_sets.h
  // Takes a set in, and returns when that has happened.
  Status Add(SetParts set);
  // This rank leaves the set, which closes it for all members in a last round; returns when that is over, and what was
  // agreed on before has run here. The set is then gone. If it was lost meanwhile, the answer is why: kStall names
  // ranks that did not come. kAborted when `go_on`, which is asked several times a second, says no; the set goes when
  // it can.
  Status Remove(uint32_t number, const std::function<bool()>& go_on);
  // Everything pending in the set fails, and it is gone. Does nothing if there is none.
  void Drop(uint32_t number);
  // Why the job has ended; ok while it goes on.
  Status JobEnd() HC_EXCLUDES(orders_mutex_);
  // Why it ends for this rank's sake, too, as soon as Abort was called.
  Status WhyLost() HC_EXCLUDES(orders_mutex_);

  // Whether a thread waits for an operation.
  bool AnybodyWaits() const { return waiting_.load() > 0; }
  // Returns when the pass under way, if any, has counted what it did, or after a tenth of a second: an operation is
  // done before its pass is.
  void AwaitPass() const;

  // For the people of all ranks of the set; does nothing if it is gone.
  void Tell(uint32_t process_set, const std::string& text) HC_EXCLUDES(orders_mutex_);
  // This rank cannot go on; the others are told.
  void Abort(const std::string& why);
  // Announces that this rank leaves, and returns when all have taken notice and everything agreed has run, or at the
  // deadline.
  void Leave(int64_t deadline_ns);
  // Joins the background thread; what is pending fails with kShutDown. Returns why the job has ended.
  Status Stop();

 private:
  static constexpr int64_t kNowhere = -1;
  // Between two looks whether an order has been taken.
  static constexpr int64_t kOrderNapNs = 100'000;

  // One pass over everything; true if anything moved.
  bool Step(int64_t now_ns) HC_REQUIRES(role_);
  bool StepAll(int64_t now_ns) HC_REQUIRES(role_);
  void TakeSubmissions(int64_t now_ns) HC_REQUIRES(role_);
  void TakeOrders() HC_REQUIRES(role_);
  void LoseRank(int rank, const Status& why, int64_t now_ns) HC_REQUIRES(role_);
  // Hears of ranks of other hosts.
  void StepWatch(int64_t now_ns) HC_REQUIRES(role_);
  void TakeWaits() HC_REQUIRES(role_);
  void AddSet(SetParts parts) HC_REQUIRES(role_);
  SetLoop* SetOf(uint32_t number) const HC_REQUIRES(role_);  // null if this rank is in no such set
  void TakeSetOrders() HC_REQUIRES(role_);
  void EraseLeft() HC_REQUIRES(role_);
  // Hands the set over to the thread that asked for it, see `gone_`.
  void Erase(uint32_t number, const Status& outcome) HC_REQUIRES(role_);
  void NoteJobEnd() HC_REQUIRES(role_);
  void AbortSets(const std::string& why) HC_REQUIRES(role_);
  void SpreadAbort() HC_REQUIRES(role_);
  const Status& End() const HC_REQUIRES(role_);  // of the job; ok while it goes on
  // See Note [Exceptions in a pass].
  void GiveUp(const std::exception& thrown) HC_REQUIRES(role_);
  bool StepGivenUp() HC_REQUIRES(role_);
  void CheckGivenUpElsewhere(int64_t now_ns) HC_REQUIRES(role_);
  void CheckAll(int64_t now_ns) HC_REQUIRES(role_);
  bool HasMessagesUnderWay() HC_REQUIRES(role_);
  bool StepMessages(int64_t now_ns) HC_REQUIRES(role_);
  void PublishMetrics() HC_REQUIRES(role_);
  bool LanesBusy() const HC_REQUIRES(role_);
  bool Ended() const HC_REQUIRES(role_);

  // Steps until `finished`, sleeping on the doorbell in between; returns at the deadline, too.
  void Drive(uint32_t who, int64_t deadline_ns, const std::function<bool()>& finished) HC_REQUIRES(role_);
  // How long it looks again and again before it sleeps.
  int64_t PatienceNs() const HC_REQUIRES(role_);
  // Whether something runs in a library that moves data only while it is called.
  bool DrivesLibrary() const HC_REQUIRES(role_);
  // Spins, then yields, while there is hope that a peer answers soon; true if something moved.
  bool StepPatiently(const std::function<bool()>& finished) HC_REQUIRES(role_);
  void Sleep(uint32_t who, int64_t deadline_ns) HC_REQUIRES(role_);
  // What has not moved for too long is reported, and ends.
  void CheckOverdue(int64_t now_ns) HC_REQUIRES(role_);
  uint32_t Armed(uint32_t who) const HC_REQUIRES(role_);
  int64_t SleepNs(int64_t now_ns, int64_t deadline_ns) HC_REQUIRES(role_);
  int64_t LongestNapNs(int64_t now_ns) const HC_REQUIRES(role_);
  void HandBack() HC_RELEASE(role_);
  void StepOn() HC_REQUIRES(role_);
  void Run();
  // The set for whose operations this rank waits while nothing more will come from it by itself, or kNowhere. Either
  // every living thread that ever submitted has waited for a while, for good, and no other thread is about to submit
  // for the first time: the main thread sleeps until another one wakes it, and none computes. Or some threads wait for
  // good, and all others of the process sleep so: it is like this where a pool submits, whose threads mostly sleep. See
  // Stillness. One set: a thread that waits for another set's operation, or for a message, may still submit what this
  // one lacks.
  int64_t StuckIn(int64_t now_ns) HC_REQUIRES(role_);
  int64_t WhereSubmittersWait(int64_t now_ns) HC_REQUIRES(role_) HC_EXCLUDES(threads_mutex_);
  bool RestIsStill(int64_t now_ns, const std::vector<pid_t>& waiting, const std::vector<pid_t>& submitters,
                   Stir allowed) HC_REQUIRES(role_);
  bool TryTakePatiently(const std::function<bool()>& finished) HC_TRY_ACQUIRE(true, role_);
  bool WaitSlice(Operation* operation, int64_t deadline_ns);
  void StartWaiting(const Operation* operation, WaitKind kind) HC_EXCLUDES(threads_mutex_);
  void StopWaiting() HC_EXCLUDES(threads_mutex_);

  const LoopConfig config_;
  Role role_;
  Yielder yielder_;
  const FaultInjector faults_;
  const SetContext context_;
  std::vector<std::unique_ptr<SetLoop>> sets_ HC_GUARDED_BY(role_);  // that this rank is a member of, by age
  std::vector<SetLoop*> by_number_ HC_GUARDED_BY(role_);             // null where it is not
  std::vector<uint32_t> leaving_ HC_GUARDED_BY(role_);               // numbers of sets that are being removed
  // Sets that ended while a library used their memory, which it may do until the process ends.
  std::vector<std::unique_ptr<SetLoop>> parked_ HC_GUARDED_BY(role_);
  // What this rank gave up in the middle of; destroyed with this, as a library may use its memory.
  std::vector<std::unique_ptr<SetLoop>> half_done_ HC_GUARDED_BY(role_);
  // Of sets that are gone.
  control::ControllerCounters past_counters_ HC_GUARDED_BY(role_);
  data::DataCounters past_data_ HC_GUARDED_BY(role_);
  const std::unique_ptr<PointToPoint> messages_ HC_PT_GUARDED_BY(role_);
  net::HostsWatch* const watch_ HC_PT_GUARDED_BY(role_);  // null on one host
  const std::function<void(const std::string&)> on_lost_elsewhere_;
  std::vector<Operation*> drained_ HC_GUARDED_BY(role_);
  std::vector<int> blamed_ HC_GUARDED_BY(role_);  // the ranks that this one waits for while it sleeps
  // How long it sleeps at most where news may wake nobody: twice as long each time, while nothing moves.
  int64_t nap_ns_ HC_GUARDED_BY(role_) = 0;
  int64_t moved_ns_ HC_GUARDED_BY(role_) = 0;  // when something moved last
  // Collectives were submitted since the coordinator thread last slept: a backward pass submits many, one by one. It
  // then naps once before it sleeps until it is rung.
  bool expects_more_ HC_GUARDED_BY(role_) = false;
  // Since when somebody has waited and nothing was submitted or agreed; 0: not now.
  int64_t still_since_ns_ HC_GUARDED_BY(role_) = 0;
  // What the last look at the threads of the process has found, and when.
  Stillness stillness_ HC_GUARDED_BY(role_);
  int64_t looked_ns_ HC_GUARDED_BY(role_) = 0;
  bool rest_is_still_ HC_GUARDED_BY(role_) = false;

  std::atomic<uint32_t> passes_{0};  // begun and ended, so odd while one is under way

  net::Doorbell doorbell_;
  OperationTable* const table_;
  Metrics* const metrics_;

  // Orders from other threads to the holder of the role.
  std::atomic<bool> ordered_{false};
  Mutex orders_mutex_;
  struct Loss {
    int rank;
    Status why;
  };
  std::vector<Loss> losses_ HC_GUARDED_BY(orders_mutex_);
  std::string abort_ HC_GUARDED_BY(orders_mutex_);
  std::vector<std::pair<uint32_t, std::string>> told_ HC_GUARDED_BY(orders_mutex_);
  bool leave_ HC_GUARDED_BY(orders_mutex_) = false;
  struct SetOrder {
    enum class Kind { kAdd, kLeave, kDrop } kind;
    uint32_t number;
    std::unique_ptr<SetParts> parts = nullptr;  // of kAdd
  };
  struct Gone {
    uint32_t number;
    std::unique_ptr<SetLoop> set;  // null if it is parked
    Status outcome;
  };
  void Order(SetOrder order) HC_EXCLUDES(orders_mutex_);
  std::unique_ptr<Gone> TakeGone(uint32_t number) HC_EXCLUDES(orders_mutex_);
  void DestroyUnclaimed() HC_EXCLUDES(orders_mutex_);
  std::vector<SetOrder> set_orders_ HC_GUARDED_BY(orders_mutex_);
  uint64_t set_orders_placed_ HC_GUARDED_BY(orders_mutex_) = 0;
  std::atomic<uint64_t> set_orders_taken_{0};
  // Sets that were removed, for who asked for it to destroy: a link may wait for the others' goodbyes, and the holder
  // of the role must not.
  std::vector<std::unique_ptr<Gone>> gone_ HC_GUARDED_BY(orders_mutex_);
  std::vector<uint32_t> unclaimed_ HC_GUARDED_BY(orders_mutex_);  // numbers of sets that nobody waits for any more
  Status job_end_ HC_GUARDED_BY(orders_mutex_);
  std::string aborted_ HC_GUARDED_BY(orders_mutex_);  // why Abort was called
  bool job_ended_ HC_GUARDED_BY(role_) = false;       // job_end_ is filled
  bool aborts_ HC_GUARDED_BY(role_) = false;
  UserTime user_time_ HC_GUARDED_BY(role_);
  const std::function<void(int64_t)> on_computes_;
  Status given_up_ HC_GUARDED_BY(role_);  // why this rank does nothing any more
  std::atomic<bool> gave_up_{false};
  int64_t given_up_elsewhere_ns_ HC_GUARDED_BY(role_) = 0;     // since when; 0: not
  std::unique_ptr<std::byte[]> reserve_ HC_GUARDED_BY(role_);  // for what is done when there is no memory
  const std::string own_rank_;
  const std::function<Status()> given_up_elsewhere_fn_;
  const std::function<void(const Status&)> tell_given_up_;

  // Who submits and who waits, for the certain-deadlock check.
  mutable Mutex threads_mutex_;
  std::vector<pid_t> submitters_ HC_GUARDED_BY(threads_mutex_);
  struct Waiter {
    pid_t thread;
    const Operation* operation;
    int64_t waits_in;  // the record may be used again before the wait ends
    WaitKind kind;
  };
  std::vector<Waiter> waiters_ HC_GUARDED_BY(threads_mutex_);
  std::atomic<bool> waits_changed_{false};  // since the sets were told
  std::atomic<pid_t> last_submitter_{0};
  std::atomic<int> waiting_{0};
  // The coordinator thread sleeps no longer than a linger and looks at the queue then: submissions need not wake it.
  std::atomic<bool> lingers_{false};
  std::atomic<bool> stop_{false};
  NamedThread thread_;  // last: it uses everything above
};

}  // namespace horocache::runtime
