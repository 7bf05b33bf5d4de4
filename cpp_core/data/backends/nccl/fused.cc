// allreduce, reduce and broadcast by NCCL.
//
// Note [Packing on the device]
// A call of NCCL costs about 10 us however small its tensor is. So small tensors are copied into one flat array by one
// kernel, go by one call, and are copied back by another kernel; each larger tensor has a call of its own, without a
// copy. All calls are one group.
//
// The kernel that packs multiplies, too, where the reduction has a factor. NCCL would multiply float16 and bfloat16 in
// their own type; so tensors of these types that are not packed go through the kernel into their results, where NCCL
// reduces them in place (but for large tensors of a reduce, of which most ranks have no result). So a product does not
// depend on what a tensor is fused with. The order of NCCL's additions may.
//
// Which tensor goes which way depends on what all ranks have agreed on, so that all make the same calls. The flat array
// has no gaps: tensors of whole vectors come first, so that these stay aligned, and the others last. On a rank whose
// tensors lie like that already, which a program can arrange, they are the flat array: nothing is copied. They may then
// be several allocations, one behind the other: kernels see addresses, and copies, which take memory of one allocation,
// do not occur here. Where the array is in a window, it is on all ranks, at the same place: only then NCCL may take the
// quicker ways of windows.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "data/backends/nccl/flat_array.h"
#include "data/backends/nccl/task.h"

namespace horocache::data {
namespace {

constexpr int64_t kLargestElement = 8;  // bytes; longer ones are two elements for the kernels

class NcclFused : public NcclTask {
 public:
  NcclFused(NcclLink* link, Collective collective)
      : NcclTask(link, std::move(collective)),
        unit_bytes_(std::min(element_bytes_, kLargestElement)),
        is_root_(collective_.root == link->rank()) {}

 private:
  using Direction = cuda::PackingKernels::Direction;

  Status QueueAll() override;
  Status QueueCalls(const NcclReduction& reduction) override;
  Status QueueOne(const Segment& segment, cuda::NcclOperation operation) const;
  // Decides which tensors are packed and which are multiplied by the kernel.
  void Sort();
  // Lays out the flat array.
  void Place();
  // True if this rank's tensors lie in memory as the flat array has them.
  bool LieFlat() const;
  Status Pack();
  Status Unpack();
  Status Launch(Direction direction, const std::vector<cuda::PackedTensor>& tensors, double factor);
  FlatPart PartOf(const Segment& segment) const { return FlatPartOf(segment.count * element_bytes_); }
  uint64_t UnitsOf(const Segment& segment) const {
    return static_cast<uint64_t>(segment.count * element_bytes_ / unit_bytes_);
  }

  int64_t unit_bytes_;  // of the kernels' elements
  const bool is_root_;
  double factor_ = 1.0;
  std::vector<const Segment*> packed_;
  std::vector<const Segment*> scaled_;  // multiplied into their results, which NCCL reduces
  std::vector<const Segment*> whole_;   // the others
  std::vector<uint64_t> places_;        // of packed_ in the flat array, in units
  int64_t flat_bytes_ = 0;
  std::byte* flat_ = nullptr;
  bool in_window_ = false, lie_flat_ = false;
};

void NcclFused::Sort() {
  const bool can_pack = link_.packing() != nullptr;
  const bool scales = can_pack && factor_ != 1.0 && element_bytes_ == 2;
  size_t small = 0;
  for (const Segment& segment : collective_.segments) {
    if (segment.count > 0 && PartOf(segment) != FlatPart::kNone) ++small;
  }
  const bool packs = can_pack && small > 1;
  for (const Segment& segment : collective_.segments) {
    if (segment.count == 0) continue;
    const bool is_small = PartOf(segment) != FlatPart::kNone;
    // In a reduce, only the root has results, so that only packed tensors are multiplied by the kernel.
    const bool reduces = collective_.op == wire::Op::kReduce;
    const bool is_packed = is_small && (packs || (scales && reduces));
    (is_packed ? packed_ : scales && !reduces ? scaled_ : whole_).push_back(&segment);
  }
}

void NcclFused::Place() {
  // Not std::ranges' form, which clang 14 does not compile with GCC's library.
  std::stable_partition(packed_.begin(), packed_.end(),
                        [this](const Segment* segment) { return PartOf(*segment) == FlatPart::kVectors; });
  // Elements that are copied as they are may be cut, if a tensor of complex numbers is aligned as one real number.
  if (factor_ == 1.0) {
    for (const Segment* const segment : packed_) {
      const uintptr_t addresses =
          reinterpret_cast<uintptr_t>(segment->input) | reinterpret_cast<uintptr_t>(segment->output);
      while (unit_bytes_ > 1 && addresses % static_cast<uintptr_t>(unit_bytes_) != 0) unit_bytes_ /= 2;
    }
  }
  for (const Segment* const segment : packed_) {
    places_.push_back(static_cast<uint64_t>(flat_bytes_ / unit_bytes_));
    flat_bytes_ += segment->count * element_bytes_;
  }
  in_window_ = collective_.op == wire::Op::kAllreduce && link_.InWindow(flat_bytes_);
  lie_flat_ = !packed_.empty() && !in_window_ && LieFlat();
}

bool NcclFused::LieFlat() const {
  for (size_t i = 0; i < packed_.size(); ++i) {
    const auto distance = static_cast<std::ptrdiff_t>(places_[i]) * unit_bytes_;
    if (packed_[i]->output != packed_[i]->input || packed_[i]->output != packed_[0]->output + distance) return false;
  }
  return true;
}

Status NcclFused::QueueAll() {
  if (wire::HasReduceOp(collective_.op)) factor_ = NcclReduction::Factor(collective_, link_.ranks());
  Sort();
  Place();
  HC_RETURN_IF_ERROR(Pack());
  HC_RETURN_IF_ERROR(QueueGroup(whole_.empty() ? 1.0 : factor_));
  return Unpack();
}

Status NcclFused::Pack() {
  if (lie_flat_) {
    flat_ = packed_[0]->output;
  } else if (flat_bytes_ > 0) {
    StatusOr<std::byte*> array = in_window_ ? link_.window() : link_.Scratch(flat_bytes_);
    if (!array.ok()) return array.status();
    flat_ = *array;
  }
  if (collective_.op == wire::Op::kBroadcast && !is_root_) return Status::Ok();
  std::vector<cuda::PackedTensor> tensors;
  if (lie_flat_ && factor_ != 1.0) {
    tensors.push_back({flat_, 0, static_cast<uint64_t>(flat_bytes_ / unit_bytes_)});  // multiplied where they are
  } else if (!lie_flat_) {
    for (size_t i = 0; i < packed_.size(); ++i)
      tensors.push_back({packed_[i]->input, places_[i], UnitsOf(*packed_[i])});
  }
  for (const Segment* const segment : scaled_) {
    // It may lie before the flat array, which may even be null; the kernels calculate modulo 2^64.
    const uint64_t distance = reinterpret_cast<uintptr_t>(segment->output) - reinterpret_cast<uintptr_t>(flat_);
    const auto place = static_cast<int64_t>(distance) / unit_bytes_;
    tensors.push_back({segment->input, static_cast<uint64_t>(place), UnitsOf(*segment)});
  }
  return Launch(Direction::kPack, tensors, factor_);
}

Status NcclFused::Unpack() {
  if (lie_flat_) return Status::Ok();
  std::vector<cuda::PackedTensor> tensors;
  for (size_t i = 0; i < packed_.size(); ++i) {
    const Segment& segment = *packed_[i];
    // The root of a broadcast has its tensor; ranks that are not the root of a reduce have no result.
    const bool has_it = collective_.op == wire::Op::kBroadcast && is_root_ && segment.output == segment.input;
    const bool lacks_it = segment.output == nullptr || (collective_.op == wire::Op::kReduce && !is_root_);
    if (!has_it && !lacks_it) tensors.push_back({segment.output, places_[i], UnitsOf(segment)});
  }
  return Launch(Direction::kUnpack, tensors, 1.0);
}

Status NcclFused::Launch(Direction direction, const std::vector<cuda::PackedTensor>& tensors, double factor) {
  if (tensors.empty()) return Status::Ok();
  cuda::Stream& stream = link_.stream();
  const auto table = link_.tables().Get(tensors, static_cast<size_t>(unit_bytes_), link_.device(), &stream);
  if (!table.ok()) return table.status();
  for (const cuda::PackedTensor& tensor : tensors)
    link_.counters.bytes_copied += tensor.count * static_cast<uint64_t>(unit_bytes_);
  const Status launched =
      link_.packing()->Launch(link_.device()->driver(), collective_.dtype, static_cast<size_t>(unit_bytes_), direction,
                              (*table)->table, (*table)->memory, flat_, factor, stream.handle());
  stream.Count(1);
  return link_.device()->Named(launched);
}

Status NcclFused::QueueCalls(const NcclReduction& reduction) {
  if (flat_bytes_ > 0) {
    const Segment flat = {flat_, flat_, flat_bytes_ / element_bytes_};
    HC_RETURN_IF_ERROR(QueueOne(flat, reduction.plain()));
  }
  for (const Segment* const segment : scaled_) {
    HC_RETURN_IF_ERROR(QueueOne({segment->output, segment->output, segment->count}, reduction.plain()));
  }
  for (const Segment* const segment : whole_) HC_RETURN_IF_ERROR(QueueOne(*segment, reduction.operation()));
  return Status::Ok();
}

Status NcclFused::QueueOne(const Segment& segment, cuda::NcclOperation operation) const {
  const cuda::Nccl& nccl = link_.nccl();
  const cuda::NcclCommHandle comm = link_.comm();
  const cuda::StreamHandle stream = link_.stream().handle();
  const auto count = static_cast<size_t>(segment.count);
  if (collective_.op == wire::Op::kBroadcast) {
    // Bytes, so that it works for every type. The root's tensor may have no result, or itself.
    std::byte* const output = segment.output != nullptr ? segment.output : const_cast<std::byte*>(segment.input);
    const std::byte* const input = segment.input != nullptr ? segment.input : output;
    return nccl.Check(nccl.Broadcast(input, output, count * static_cast<size_t>(element_bytes_), cuda::kNcclUint8,
                                     collective_.root, comm, stream),
                      "ncclBroadcast", comm);
  }
  const cuda::NcclDataType type = *cuda::NcclTypeOf(collective_.dtype);
  if (collective_.op == wire::Op::kReduce) {
    return nccl.Check(
        nccl.Reduce(segment.input, segment.output, count, type, operation, collective_.root, comm, stream),
        "ncclReduce", comm);
  }
  return nccl.Check(nccl.AllReduce(segment.input, segment.output, count, type, operation, comm, stream),
                    "ncclAllReduce", comm);
}

}  // namespace

std::unique_ptr<CollectiveTask> MakeNcclFused(NcclLink* link, Collective collective) {
  return std::unique_ptr<CollectiveTask>(new (link) NcclFused(link, std::move(collective)));
}

}  // namespace horocache::data
