// Tensor fusion: packs agreed operations into plans, in agreed order.
//
// The operations that the ranks agree on at once are planned by descending priority, and in agreed order if their
// priority is equal. They do not overtake operations that were planned before: in a round that gathers, those with a
// cache bit come before those that rank 0 has answered. PlanFirst looks for others only if the first operation is of a
// kind that fuses; MayJoin tells which can be one with it: those that are equal but for name, shape and priority.
//
// The result depends only on the agreed operations and the configuration, so every rank makes the same plans. A group
// stays whole unless it is larger than the threshold: then it runs back to back in pieces of at most the threshold (a
// single larger tensor runs alone), and other operations may join the last piece. Example with a threshold of 10 bytes:
// a group of tensors of 6, 6 and 3 bytes, followed by an operation of 1 byte, gives the plans {6} and {6, 3, 1}.
//
// Threads: the thread that holds the rank's progress lock. Pure. Steady state reuses every vector.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "control/plan.h"
#include "wire/message.h"

namespace horocache::control {

class FusionPlanner {
 public:
  // `threshold_bytes` 0 switches fusion off.
  FusionPlanner(int64_t threshold_bytes, bool disable_group_fusion, uint32_t epoch)
      : threshold_(threshold_bytes), disable_group_fusion_(disable_group_fusion), epoch_(epoch) {}

  // For the operations of later runs.
  void SetThreshold(int64_t bytes) { threshold_ = bytes; }
  // Adds the next agreed operation. `bytes` is SignatureBytes of its signature.
  void Add(OpId op, std::shared_ptr<const wire::Signature> signature, wire::Choice choice, int64_t bytes);
  // Makes plans of all operations added since the last call. The ranks of `joined` have no data; an average divides by
  // `divisor_ranks`.
  void Run(const std::vector<int32_t>& joined, int divisor_ranks);
  // Adds a plan for one inline allreduce, while no rank has joined; the caller fills in the contributions.
  Plan& AddInline(OpId op, std::shared_ptr<const wire::Signature> signature, wire::Choice choice, int divisor_ranks);
  // Adds a plan for kJoin, which never fuses.
  void AddJoin(OpId op, std::shared_ptr<const wire::Signature> signature, int32_t last_joined);

  // Takes the next plan, in order; false if there is none. Swaps its vectors with those of *plan.
  bool Next(Plan* plan);

 private:
  struct Item {
    OpId op = kNoOp;
    std::shared_ptr<const wire::Signature> signature;
    wire::Choice choice;
    int64_t bytes = 0;
    int32_t priority = 0;
    bool one_dtype = true;
  };

  Plan& NewPlan(const Item& item, const std::vector<int32_t>& joined);
  // Makes plans for all pieces of the item; the last plan stays open. Returns the bytes in the last.
  int64_t EmitPieces(const Item& item, const std::vector<int32_t>& joined);
  // Sorts the waiting items by descending priority, else in agreed order.
  void Order();
  void PlanFirst(const std::vector<int32_t>& joined);
  bool MayJoin(const Item& first, const Item& item) const;

  int64_t threshold_;
  const bool disable_group_fusion_;
  const uint32_t epoch_;
  int divisor_ranks_ = 0;  // of the current run
  uint64_t next_sequence_ = 0;
  std::vector<Item> items_;
  std::vector<size_t> waiting_;  // indices of items not yet planned
  bool ordered_ = true;          // true if no waiting item has a higher priority than one before it
  std::vector<size_t> set_aside_;
  // Plans between head_ and tail_ are ready; those outside keep their vectors for reuse.
  std::vector<Plan> plans_;
  size_t head_ = 0;
  size_t tail_ = 0;
};

}  // namespace horocache::control
