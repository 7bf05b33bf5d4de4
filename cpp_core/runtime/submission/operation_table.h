// All operations that are not yet consumed, by handle, and the names that are in flight.
//
// Note [Repeated groups]
// A training loop submits the same groups in every step: the same members under the same names, mostly from the same
// memory. So the table keeps the record of a group for the next group of that name (NewGroup), together with everything
// found out about it. The binding that fills the record compares the new group with the old one instead of writing it,
// and marks in `prepared` what is unchanged. For an unchanged request, no name is built, looked up or hashed, and the
// response cache recognises its entry by address.
//
// Names belong to a process set: two sets may have the same name in flight.
//
// Shared: user threads submit and consume operations, the driving thread finishes them. One mutex guards slots and
// names and is held only briefly. The table owns the records; Runtime owns the table.
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
#include "runtime/diagnostics/metrics.h"
#include "runtime/submission/operation.h"

namespace horocache::runtime {

class OperationTable {
 public:
  // Called by the driving thread.
  struct Callbacks {
    std::function<void(const Status& why)> on_failure = [](const Status&) {};  // of any operation
    // Also called for a released operation that fails, of which no caller learns.
    std::function<void(const Status& why, uint32_t process_set)> on_unseen_failure = [](const Status&, uint32_t) {};
    // TakeOwners will find the owner of a released operation, whose caller may never call again.
    std::function<void()> on_freed = [] {};
  };

  // `recorder` and `metrics` outlive the table.
  OperationTable(observe::FlightRecorder* recorder, Metrics* metrics, Callbacks callbacks)
      : recorder_(recorder), metrics_(metrics), callbacks_(std::move(callbacks)) {}

  // Returns a record to fill; its containers may hold stale values. The caller passes it to Add or Recycle.
  Operation* New() HC_EXCLUDES(mutex_);
  // Returns a record for a group of this name. If `prepared.filled`, it still holds an earlier group of the name.
  Operation* NewGroup(std::string_view name) HC_EXCLUDES(mutex_);

  // Names the operation if it has no name, and queues it. Returns kDuplicateName if its name or a member's name is in
  // flight; messages have no names. Sets *first to true if the queue was empty.
  Status Add(Operation* operation, int64_t now_ns, bool* first) HC_EXCLUDES(mutex_);

  // Moves the queued operations to *out, in order of submission. Clears *out first.
  void Drain(std::vector<Operation*>* out) HC_EXCLUDES(mutex_);
  bool HasQueued() const { return queued_count_.load(std::memory_order_seq_cst) != 0; }

  // Returns null if the handle is unknown or consumed.
  Operation* Find(int64_t handle) HC_EXCLUDES(mutex_);
  // The controller's identifier of an operation. A record lives until its handle is consumed and the operation
  // is done; by then the controller has dropped the identifier.
  static uint64_t IdOf(Operation* operation) { return reinterpret_cast<uintptr_t>(operation); }
  static Operation* FromId(uint64_t id) { return reinterpret_cast<Operation*>(static_cast<uintptr_t>(id)); }

  // Records that the data plane has started the operation, as a part of the plan with this sequence number.
  void NoteStarted(const Operation& operation, uint64_t sequence, int64_t now_ns) const;
  // Marks the operation launched, frees its names and wakes the threads that wait for this. `on_device` happens when
  // the device has done the operation; Finish follows then.
  void NoteLaunched(Operation* operation, std::shared_ptr<const cuda::Event> on_device) HC_EXCLUDES(mutex_);
  // Marks the operation done, frees its names and wakes the threads that wait for it. Does not throw. A released one
  // returns to the pool.
  void Finish(Operation* operation, Status status) HC_EXCLUDES(mutex_);
  // Fails every submitted operation that is not done, even if memory has run out. Called by the driving thread.
  void FailAll(const Status& why) HC_EXCLUDES(mutex_);
  // Moves the owners of the operations finished since the last call to the end of *owners. Cheap if there are none.
  void TakeOwners(std::vector<void*>* owners) HC_EXCLUDES(mutex_);
  // The submitted, unfinished operations, for flight records and dumps.
  std::vector<observe::PendingOperation> Pending() const HC_EXCLUDES(mutex_);
  // The number of names that the table stores for a process set, in flight or free.
  size_t KeptNames(uint32_t process_set) const HC_EXCLUDES(mutex_);
  // Frees the memory of a removed process set's names.
  void ForgetSet(uint32_t process_set) HC_EXCLUDES(mutex_);
  // Consumes the handle and returns the record to the pool. The caller must have taken `owner` before.
  void Recycle(Operation* operation) HC_EXCLUDES(mutex_);
  // Consumes the handle of a launched operation that is not done. The table keeps the record and its owner until the
  // device has done the operation; *results gets its results. Returns false, with nothing changed, if it is done.
  bool Release(Operation* operation, std::vector<Result>* results) HC_EXCLUDES(mutex_);
  // Has a listener called when the operation is done. With `detach`, the handle is consumed, and the table keeps the
  // record and its owner until then; the caller has named the operation, and it has no results to return. Nothing is
  // changed if the operation is done, or has a listener.
  enum class Listens { kYes, kIsDone, kHasListener };
  Listens Listen(Operation* operation, const Listener& listener, bool detach) HC_EXCLUDES(mutex_);
  // The number of launched operations that are not done.
  int launched() const { return launched_.load(); }

 private:
  // A handle is slot | generation << kSlotBits. The generation keeps a consumed handle distinct from later ones of the
  // slot.
  static constexpr int kSlotBits = 24;
  struct Slot {
    std::unique_ptr<Operation> operation;
    int64_t generation = 0;
    bool used = false;
  };
  using Numbers = std::priority_queue<int, std::vector<int>, std::greater<>>;

  static constexpr size_t kLeastNameBytes = 16 << 20;  // about 100,000 names of usual length

  // The names of one process set.
  struct Names {
    // Free names stay in the map, so that a name used in every step costs no allocation. When the map takes `sweep_at`
    // bytes, the free names are removed. This bounds the memory of a job that uses new names in every step.
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
  void FreeNumber(Operation* operation) HC_REQUIRES(mutex_);
  void PutBack(Operation* operation) HC_REQUIRES(mutex_);
  void NoteFinished(Operation* operation) HC_REQUIRES(mutex_);
  void ReserveFreed() HC_REQUIRES(mutex_);
  // Reports a failure of which no caller learns.
  void NoteUnseen(const Status& status, uint32_t process_set);
  void Wake(Operation* operation) const;

  void Record(observe::FlightRecorder::Kind kind, const Operation& operation, int64_t now_ns,
              uint64_t sequence = 0) const;

  observe::FlightRecorder* const recorder_;
  Metrics* const metrics_;
  const Callbacks callbacks_;

  mutable Mutex mutex_;
  std::vector<Slot> slots_ HC_GUARDED_BY(mutex_);
  std::vector<int> free_slots_ HC_GUARDED_BY(mutex_);
  // By group name: the slot of the record that is ready for the next group; kNoSlot while it is in use.
  static constexpr int kNoSlot = -1;
  control::StringMap<int> groups_ HC_GUARDED_BY(mutex_);
  std::vector<Operation*> queued_ HC_GUARDED_BY(mutex_);
  std::atomic<size_t> queued_count_{0};
  std::deque<Names> names_ HC_GUARDED_BY(mutex_);   // by process set
  uint64_t names_epoch_ HC_GUARDED_BY(mutex_) = 0;  // incremented when names are removed from the maps
  struct Finished {
    Operation* operation;
    int64_t handle;  // differs from the record's handle if the record has been reused since
  };
  std::vector<Finished> finished_ HC_GUARDED_BY(mutex_);
  std::vector<void*> freed_ HC_GUARDED_BY(mutex_);  // owners of released operations that are done
  size_t detached_ HC_GUARDED_BY(mutex_) = 0;       // operations that are not done
  std::atomic<size_t> finished_count_{0};           // of both lists
  std::atomic<int> launched_{0};
};

}  // namespace horocache::runtime
