#include "runtime/progress/small_lanes.h"

#include "control/signature.h"

namespace horocache::runtime {

void SmallLanes::Add(size_t backend, size_t lane) {
  if (rings_.size() <= backend) rings_.resize(backend + 1);
  rings_[backend].lanes.push_back(lane);
}

size_t SmallLanes::Next(size_t backend, const control::Plan& plan) {
  if (backend >= rings_.size() || rings_[backend].lanes.empty() || !IsSmall(plan)) return backend;
  Ring& ring = rings_[backend];
  const size_t lane = ring.lanes[ring.next];
  ring.next = (ring.next + 1) % ring.lanes.size();
  return lane;
}

bool SmallLanes::IsSmall(const control::Plan& plan) const {
  if (!wire::TraitsOf(plan.op).fuses || plan.device_class != wire::DeviceClass::kCpu) return false;
  int64_t left = most_bytes_;
  for (const control::PlanItem& item : plan.items) {
    const std::vector<wire::TensorMeta>& tensors = item.signature->tensors;
    const bool whole = item.last_piece && item.num_tensors == static_cast<int>(tensors.size());
    if (!whole) return false;
    for (const wire::TensorMeta& tensor : tensors) {
      left -= control::TensorBytes(tensor);
      if (left < 0) return false;
    }
  }
  return true;
}

}  // namespace horocache::runtime
