// Bins agreed operations into plans, in agreed order: tensor fusion.
//
// What was agreed on in one round is planned by descending priority, and in agreed order where that is equal. Nothing
// that was planned before is overtaken.
//
// The result depends on the agreed list and the configuration alone, so every rank makes the same plans. Groups are
// kept whole, unless they are larger than the threshold: then they run back to back in pieces of at most the threshold
// (a single tensor that is larger runs alone), and other operations may join the last piece.
//
// Role: coordinator. Pure. Steady state reuses every vector.
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

  // The next agreed operation. `bytes` is SignatureBytes of its signature.
  void Add(OpId op, std::shared_ptr<const wire::Signature> signature, wire::Choice choice, int64_t bytes);
  // Makes plans of what was added since the last call.
  // Some ranks have joined; an average divides by `divisor_ranks`.
  void Run(const std::vector<int32_t>& joined, int divisor_ranks);
  // A plan for an operation that rides on its round, by itself, while nobody has joined; the caller fills in what rode.
  Plan& AddRide(OpId op, std::shared_ptr<const wire::Signature> signature, wire::Choice choice, int divisor_ranks);
  // A plan for kJoin, which never fuses.
  void AddJoin(OpId op, std::shared_ptr<const wire::Signature> signature, int32_t last_joined);

  // The next plan, in order; swaps its vectors with those of *plan.
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
  // Plans for all pieces of the item; the last stays open. Returns the bytes in the last.
  int64_t EmitPieces(const Item& item, const std::vector<int32_t>& joined);
  // Waiting items by descending priority, else in agreed order.
  void Order();
  void PlanFirst(const std::vector<int32_t>& joined);
  bool MayJoin(const Item& first, const Item& item) const;

  const int64_t threshold_;
  const bool disable_group_fusion_;
  const uint32_t epoch_;
  int divisor_ranks_ = 0;  // of this run
  uint64_t next_sequence_ = 0;
  std::vector<Item> items_;
  std::vector<size_t> waiting_;  // indices of items not yet planned
  bool ordered_ = true;          // none of them has a higher priority than one before it
  std::vector<size_t> set_aside_;
  // Plans between head_ and tail_ are ready; those outside keep their vectors for reuse.
  std::vector<Plan> plans_;
  size_t head_ = 0;
  size_t tail_ = 0;
};

}  // namespace horocache::control
