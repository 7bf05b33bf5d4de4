#include "control/fusion_planner.h"

#include <algorithm>
#include <utility>

#include "control/signature.h"

namespace horocache::control {

using wire::Signature;

void FusionPlanner::Add(OpId op, std::shared_ptr<const Signature> signature, wire::Choice choice, int64_t bytes) {
  const auto& tensors = signature->tensors;
  const bool one_dtype = std::ranges::all_of(tensors, [&](const auto& t) { return t.dtype == tensors[0].dtype; });
  const int32_t priority = signature->priority;
  ordered_ = ordered_ && (items_.empty() || priority <= items_.back().priority);
  waiting_.push_back(items_.size());
  items_.push_back({op, std::move(signature), choice, bytes, priority, one_dtype});
}

void FusionPlanner::Run(const std::vector<int32_t>& joined, int divisor_ranks) {
  divisor_ranks_ = divisor_ranks;
  if (!std::exchange(ordered_, true)) Order();
  while (!waiting_.empty()) PlanFirst(joined);
  items_.clear();
}

Plan& FusionPlanner::AddInline(OpId op, std::shared_ptr<const Signature> signature, wire::Choice choice,
                               int divisor_ranks) {
  divisor_ranks_ = divisor_ranks;
  const auto tensors = static_cast<int>(signature->tensors.size());
  Item item{.op = op, .signature = std::move(signature), .choice = choice};
  Plan& plan = NewPlan(item, {});
  plan.items.push_back({op, std::move(item.signature), 0, tensors, true, choice.chosen_by});
  return plan;
}

// Sorts by priority and index, because a stable sort allocates; the indices are in agreed order.
void FusionPlanner::Order() {
  std::ranges::sort(waiting_, [this](size_t a, size_t b) {
    const int32_t of_a = items_[a].priority, of_b = items_[b].priority;
    return of_a != of_b ? of_a > of_b : a < b;
  });
}

void FusionPlanner::AddJoin(OpId op, std::shared_ptr<const Signature> signature, int32_t last_joined) {
  const Item item{op, std::move(signature), {}, 0, 0, true};
  Plan& plan = NewPlan(item, {});
  plan.last_joined = last_joined;
  plan.items.push_back({op, item.signature, 0, 0, true});
}

bool FusionPlanner::Next(Plan* plan) {
  if (head_ == tail_) {
    head_ = tail_ = 0;
    return false;
  }
  std::swap(*plan, plans_[head_++]);
  return true;
}

Plan& FusionPlanner::NewPlan(const Item& item, const std::vector<int32_t>& joined) {
  if (tail_ == plans_.size()) plans_.emplace_back();
  Plan& plan = plans_[tail_++];
  plan.op = item.signature->op;
  plan.choice = item.choice;
  plan.sequence = next_sequence_++;
  plan.epoch = epoch_;
  plan.device_class = item.signature->device_class;
  plan.items.clear();
  plan.joined.assign(joined.begin(), joined.end());
  plan.divisor_ranks = divisor_ranks_;
  plan.last_joined = -1;
  plan.contributions.clear();
  return plan;
}

int64_t FusionPlanner::EmitPieces(const Item& item, const std::vector<int32_t>& joined) {
  const std::vector<wire::TensorMeta>& tensors = item.signature->tensors;
  const int count = static_cast<int>(tensors.size());
  if (!Fuses(item.signature->op) || (item.one_dtype && item.bytes <= threshold_) || count <= 1) {
    NewPlan(item, joined).items.push_back({item.op, item.signature, 0, count, true, item.choice.chosen_by});
    return item.bytes;
  }
  int first = 0;
  while (true) {
    int end = first;
    int64_t bytes = 0;
    while (end < count && tensors[static_cast<size_t>(end)].dtype == tensors[static_cast<size_t>(first)].dtype) {
      const int64_t more = TensorBytes(tensors[static_cast<size_t>(end)]);
      if (end > first && (threshold_ == 0 || bytes + more > threshold_)) break;
      bytes += more;
      ++end;
    }
    NewPlan(item, joined)
        .items.push_back({item.op, item.signature, first, end - first, end == count, item.choice.chosen_by});
    if (end == count) return bytes;
    first = end;
  }
}

// Plans the first waiting item and looks ahead for others that may join it. Looks past items that do not fit or match,
// but stops when the bytes in the plan and the bytes of these items together exceed the threshold. So no operation
// overtakes more than one plan's worth of others.
void FusionPlanner::PlanFirst(const std::vector<int32_t>& joined) {
  const Item& first = items_[waiting_[0]];
  int64_t total = EmitPieces(first, joined);
  int64_t skipped = 0;
  const bool open = threshold_ > 0 && first.one_dtype && Fuses(first.signature->op) &&
                    !(disable_group_fusion_ && IsGroup(*first.signature));
  set_aside_.clear();
  size_t next = 1;
  for (; open && next < waiting_.size() && total + skipped <= threshold_; ++next) {
    const Item& item = items_[waiting_[next]];
    if (MayJoin(first, item) && total + item.bytes <= threshold_) {
      plans_[tail_ - 1].items.push_back(
          {item.op, item.signature, 0, static_cast<int>(item.signature->tensors.size()), true, item.choice.chosen_by});
      total += item.bytes;
    } else {
      set_aside_.push_back(waiting_[next]);
      skipped += item.bytes;
    }
  }
  set_aside_.insert(set_aside_.end(), waiting_.begin() + static_cast<std::ptrdiff_t>(next), waiting_.end());
  std::swap(waiting_, set_aside_);
}

bool FusionPlanner::MayJoin(const Item& first, const Item& item) const {
  const Signature& a = *first.signature;
  const Signature& b = *item.signature;
  if (!item.one_dtype || (disable_group_fusion_ && IsGroup(b))) return false;
  return a.op == b.op && a.tensors[0].dtype == b.tensors[0].dtype && a.reduce_op == b.reduce_op &&
         a.prescale == b.prescale && a.postscale == b.postscale && a.root == b.root &&
         a.device_class == b.device_class && a.layers == b.layers && first.choice.RunsAs(item.choice);
}

}  // namespace horocache::control
