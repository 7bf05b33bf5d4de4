// All operations that are not yet consumed, by handle, and the names that are in flight.
//
// Note [Groups that are sent again]
// A training loop sends the same groups in every step: the same members, under the same names, mostly from the same
// memory. So the table keeps a record that has carried a group for the next group of that name (NewGroup), with all
// that was found out about it. Who fills the record compares instead of writing, and says in `prepared` what has not
// changed: then no name is made, looked up or hashed, and the response cache's entry is recognised by its address.
//
// Names are of a process set: the same one may be in flight in two.
//
// Shared: user threads submit and consume, the holder of the role finishes. One mutex guards slots and names; it is
// held for a few instructions. Owns the records; Runtime owns the table.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "control/string_map.h"
#include "observe/flight_recorder.h"
#include "observe/flight_text.h"
#include "runtime/metrics.h"
#include "runtime/operation.h"

namespace horocache::runtime {

class OperationTable {
 public:
  // `recorder` and `metrics` outlive the table; `on_failure` is told of every operation that fails, by who holds the
  // role.
  OperationTable(observe::FlightRecorder* recorder, Metrics* metrics, std::function<void(const Status&)> on_failure)
      : recorder_(recorder), metrics_(metrics), on_failure_(std::move(on_failure)) {}

  // A record to fill; its containers may hold stale values. Give it to Add or Recycle.
  Operation* New() HC_EXCLUDES(mutex_);
  // One for a group of this name: what an earlier one left, if `prepared.filled`.
  Operation* NewGroup(std::string_view name) HC_EXCLUDES(mutex_);

  // Names the operation if it has no name, gives it a handle and queues it. kDuplicateName if its name, or a member's,
  // is in flight; messages have no names. `*first` tells whether the queue was empty.
  Status Add(Operation* operation, int64_t now_ns, bool* first) HC_EXCLUDES(mutex_);

  // Moves the queued operations to *out (cleared first), in order of submission.
  void Drain(std::vector<Operation*>* out) HC_EXCLUDES(mutex_);
  bool HasQueued() const { return queued_count_.load(std::memory_order_seq_cst) != 0; }

  // Null if the handle is unknown or was consumed.
  Operation* Find(int64_t handle) HC_EXCLUDES(mutex_);
  // The controller's name for an operation. A record lives until its handle is consumed, which is after the controller
  // has let go of it.
  static uint64_t IdOf(Operation* operation) { return reinterpret_cast<uintptr_t>(operation); }
  static Operation* FromId(uint64_t id) { return reinterpret_cast<Operation*>(static_cast<uintptr_t>(id)); }

  // The data plane has begun with it.
  void NoteStarted(const Operation& operation, int64_t now_ns) const;
  // Marks it done, frees its names and wakes who waits for it. Throws nothing.
  void Finish(Operation* operation, Status status) HC_EXCLUDES(mutex_);
  // Finishes everything that was submitted and is not done, whoever knows of it, also without memory. By who holds the
  // role.
  void FailAll(const Status& why) HC_EXCLUDES(mutex_);
  // Operations finished since the last call whose `owner` is still set; cheap when there is none.
  void TakeOwners(std::vector<void*>* owners) HC_EXCLUDES(mutex_);
  // What is submitted and not finished, for people.
  std::vector<observe::PendingOperation> Pending() const HC_EXCLUDES(mutex_);
  // How many names it keeps of a process set, in flight or free.
  size_t KeptNames(uint32_t process_set) const HC_EXCLUDES(mutex_);
  // The process set is gone: frees what its names take.
  void ForgetSet(uint32_t process_set) HC_EXCLUDES(mutex_);
  // The handle is consumed; the record goes back to the pool. `owner` must have been taken.
  void Recycle(Operation* operation) HC_EXCLUDES(mutex_);

 private:
  // A handle is slot + generation << kSlotBits, so that a consumed handle is never mistaken for a new one.
  static constexpr int kSlotBits = 24;
  struct Slot {
    std::unique_ptr<Operation> operation;
    int64_t generation = 0;
    bool used = false;
  };
  using Numbers = std::priority_queue<int, std::vector<int>, std::greater<>>;

  static constexpr size_t kLeastNameBytes = 16 << 20;  // about 100,000 usual names

  // Of one process set.
  struct Names {
    // Names stay in the map when they are free, so that a name used in every step costs no allocation. When they take
    // `sweep_at` bytes, the free ones go: a job whose names are new in every step takes no more.
    control::StringMap<bool> in_flight;
    size_t bytes = 0;
    size_t sweep_at = kLeastNameBytes;
    std::array<Numbers, wire::kNumOps> free_numbers;
    std::array<int, wire::kNumOps> next_number = {};
  };

  Operation* Take(int slot) HC_REQUIRES(mutex_);
  Operation* TakeFree() HC_REQUIRES(mutex_);
  void ForgetGroups() HC_REQUIRES(mutex_);
  bool ClaimAgain(Operation* operation) HC_REQUIRES(mutex_);
  Names& NamesOf(const Operation& operation) HC_REQUIRES(mutex_);
  void SweepNames(Names* names) HC_REQUIRES(mutex_);
  void GiveName(Operation* operation) HC_REQUIRES(mutex_);
  Status ClaimNames(Operation* operation) HC_REQUIRES(mutex_);
  Status ClaimName(Operation* operation, const std::string& name) HC_REQUIRES(mutex_);
  void FreeNames(Operation* operation) HC_REQUIRES(mutex_);
  void NoteFinished(Operation* operation) HC_REQUIRES(mutex_);

  void Record(observe::FlightRecorder::Kind kind, const Operation& operation, int64_t now_ns) const;

  observe::FlightRecorder* const recorder_;
  Metrics* const metrics_;
  const std::function<void(const Status&)> on_failure_;

  mutable Mutex mutex_;
  std::vector<Slot> slots_ HC_GUARDED_BY(mutex_);
  std::vector<int> free_slots_ HC_GUARDED_BY(mutex_);
  // By name of a group: the slot of the record that waits for the next one; kNoSlot while it is in use.
  static constexpr int kNoSlot = -1;
  control::StringMap<int> groups_ HC_GUARDED_BY(mutex_);
  std::vector<Operation*> queued_ HC_GUARDED_BY(mutex_);
  std::atomic<size_t> queued_count_{0};
  std::deque<Names> names_ HC_GUARDED_BY(mutex_);   // by process set
  uint64_t names_epoch_ HC_GUARDED_BY(mutex_) = 0;  // grows when names leave the maps
  struct Finished {
    Operation* operation;
    int64_t handle;  // tells whether the record has been used again since
  };
  std::vector<Finished> finished_ HC_GUARDED_BY(mutex_);
  std::atomic<size_t> finished_count_{0};
};

}  // namespace horocache::runtime
