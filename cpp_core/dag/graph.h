// Operations that read and write variables, and the order that follows: an operation is ready when all earlier writers
// of what it reads, and all earlier users of what it writes, have ended. "Earlier" is the order of Push.
//
// The algorithm is that of MXNet's engine (Chen et al., 2015), with one lock outside instead of one for each variable.
// A variable has a queue of the operations that wait for it, and counts those that use it now. For example, after
//
//   Push(a, writes {x});  Push(b, reads {x});  Push(c, reads {x});  Push(d, writes {x});
//
// `a` is ready. Its end makes b and c ready together, and the end of the last of the two makes d ready.
//
// Note [Failures]
// If an operation fails, what it writes has the failure from then on. An operation that reads or writes such a variable
// is not run but ends with the same failure, which so reaches everything that depends on the first one. TakeFailure of
// a variable removes it there.
//
// Threads: one at a time. Pure: no lock, thread or clock. A steady state allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"

namespace horocache::dag {

// Why an operation failed.
struct Failure {
  Status status;
  std::shared_ptr<void> cause;  // such as the exception of another language
};
using FailurePtr = std::shared_ptr<const Failure>;

// Slot and generation, so that the handle of a deleted variable, or of an operation that has ended, is not that of a
// later one.
using Handle = uint64_t;
constexpr Handle kNoHandle = ~Handle{0};

class Graph {
 public:
  struct Operation {
    void* task = nullptr;      // the caller's
    int32_t priority = 0;      // of ready operations, the highest comes first
    uint8_t queue = 0;         // the caller's: which threads run it
    bool always_runs = false;  // the caller's: also if something that it uses has a failure
  };

  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // `carries` false: the variable only orders operations. It takes no failure from them.
  Handle AddVariable(bool carries = true);
  // The variable takes no further operations, and is gone when those it has have ended. kInvalidArgument if it is gone.
  Status DeleteVariable(Handle variable);
  bool HasVariable(Handle variable) const { return FindVariable(variable) != nullptr; }
  // True if no operation writes the variable, or waits to; false if it is gone.
  bool IsReadable(Handle variable) const;
  // True if no operation uses the variable, or waits to, and it has no failure; false if it is gone.
  bool IsIdle(Handle variable) const;
  // True if an operation uses the variable, or waits to.
  bool IsUsed(Handle variable) const;
  // The number of ended writes; 0 for an unknown variable.
  uint64_t version(Handle variable) const;

  // Adds an operation. A variable that is named twice counts once; one that is read and written is written. Returns
  // kInvalidArgument, with nothing changed, if a variable is gone.
  StatusOr<Handle> Push(const Operation& operation, std::span<const Handle> reads, std::span<const Handle> writes);
  // Ends a ready operation. kInvalidArgument if there is none of this handle, for example because it has ended.
  Status Complete(Handle operation, FailurePtr failure);
  // Moves the operations that have become ready since the last call to the end of *ready, in the order of Push.
  void TakeReady(std::vector<Handle>* ready);

  const Operation* Find(Handle operation) const;
  // A small number that no other operation has until this one has ended.
  static uint32_t SlotOf(Handle operation) { return static_cast<uint32_t>(operation); }
  // The sequence number of an operation that has not ended: the first that is pushed has 0.
  uint64_t SequenceOf(Handle operation) const { return operations_[SlotOf(operation)].sequence; }
  // The failure of something that a ready operation uses; null if nothing has one.
  FailurePtr Inherited(Handle operation) const;
  // Removes and returns the failure of a variable; null if it has none.
  FailurePtr TakeFailure(Handle variable);
  void ForgetFailures();

  size_t variables() const { return variables_used_; }
  size_t operation_slots() const { return operations_.size(); }  // see SlotOf
  size_t pending() const { return pending_; }                    // operations that have not ended
  uint64_t pushed() const { return pushed_; }
  uint64_t allocations() const { return allocations_; }  // how often one of the tables has grown

  // Calls visit(handle, is_ready) for each operation that has not ended, in no order.
  template <typename Visit>
  void ForEachPending(Visit&& visit) const {
    for (uint32_t slot = 0; slot < operations_.size(); ++slot) {
      const Entry& entry = operations_[slot];
      if (entry.used) visit(HandleOf(slot, entry.generation), entry.missing == 0);
    }
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  // The use of a variable by an operation.
  struct Use {
    uint32_t operation = kNone;
    uint32_t variable = kNone;
    uint32_t next_of_operation = kNone;
    uint32_t next_of_variable = kNone;  // in the variable's queue
    bool writes = false;
  };
  struct Variable {
    uint32_t generation = 0;
    uint32_t first = kNone, last = kNone;  // the uses that wait
    uint32_t readers = 0;                  // operations that have it to read, ready or not
    bool written = false;                  // an operation has it to write
    bool used = false;
    bool carries = true;
    bool closed = false;  // deleted as soon as its operations have ended
    uint64_t version = 0;
    uint64_t named_by = 0;  // 1 + the sequence number of the last operation that named it
    FailurePtr failure;
  };
  struct Entry {
    Operation operation;
    uint64_t sequence = 0;
    uint32_t generation = 0;
    uint32_t uses = kNone;
    uint32_t missing = 0;  // uses that wait
    bool used = false;
  };

  static Handle HandleOf(uint32_t slot, uint32_t generation) { return Handle{generation} << 32 | slot; }
  static uint32_t GenerationOf(Handle handle) { return static_cast<uint32_t>(handle >> 32); }

  const Variable* FindVariable(Handle handle) const;
  Variable* FindVariable(Handle handle) {
    return const_cast<Variable*>(static_cast<const Graph*>(this)->FindVariable(handle));
  }
  const Entry* FindEntry(Handle handle) const;
  void AddUse(uint32_t operation, Handle variable, bool writes);
  // Gives the variable to the waiting operations that may have it now.
  void Advance(Variable* variable);
  void Grant(Variable* variable, uint32_t use);
  void FreeIfClosed(uint32_t variable);
  template <typename T>
  uint32_t TakeSlot(std::vector<T>* slots, std::vector<uint32_t>* free);

  std::vector<Variable> variables_;
  std::vector<Entry> operations_;
  std::vector<Use> uses_;
  std::vector<uint32_t> free_variables_, free_operations_, free_uses_;
  std::vector<uint32_t> ready_;
  size_t variables_used_ = 0;
  size_t pending_ = 0;
  uint64_t pushed_ = 0;
  uint64_t allocations_ = 0;
};

}  // namespace horocache::dag
