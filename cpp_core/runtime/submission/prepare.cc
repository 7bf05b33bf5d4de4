#include "runtime/submission/prepare.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/text.h"
#include "control/signature.h"
#include "data/kernels/finite.h"
#include "runtime/submission/failed_input.h"

namespace horocache::runtime {
namespace {

constexpr size_t kMostShown = 256;  // bytes of a name in an error, which is sent to other ranks

std::string ShownName(const wire::TensorMeta& tensor) {
  return "'" + Printable(tensor.name.substr(0, kMostShown)) + "'";
}

struct Place {
  const std::byte* begin;
  const std::byte* end;
  size_t index;
};

// For places in order of their begins.
bool Overlap(const Place& a, const Place& b) { return a.end > b.begin; }

}  // namespace

void DescribeTensor(size_t index, DType dtype, std::span<const int64_t> shape, const std::byte* data,
                    Operation* operation) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  operation->tensors[index] = {data, nullptr, count, shape.empty() ? 1 : shape[0], 0};
  wire::TensorMeta& meta = operation->request.signature.tensors[index];
  meta.dtype = dtype;
  meta.shape.assign(shape.begin(), shape.end());
  if (!wire::SizesDiffer(operation->request.signature.op)) return;
  if (meta.shape.empty()) meta.shape.push_back(1);
  meta.shape[0] = -1;
}

Status SetOutput(size_t index, DType dtype, int64_t count, std::byte* data, Operation* operation) {
  TensorArgument& tensor = operation->tensors[index];
  const DType expected = operation->request.signature.tensors[index].dtype;
  const bool fits = count == tensor.count || wire::WorksOnRows(operation->request.signature.op);
  if (dtype != expected || !fits) {
    return {StatusCode::kInvalidArgument, "output " + std::to_string(index) + " has " + std::to_string(count) +
                                              " elements of " + std::string(DTypeName(dtype)) + ", its input has " +
                                              std::to_string(tensor.count) + " of " + std::string(DTypeName(expected))};
  }
  tensor.output = data;
  tensor.output_count = count;
  return Status::Ok();
}

void NameMember(size_t index, bool group, wire::Signature* signature) {
  std::string& member = signature->tensors[index].name;
  member = signature->name;
  const size_t count = signature->tensors.size();
  if (count == 1 && (!group || signature->name.empty())) return;
  member.append("_").append(std::to_string(index + 1)).append("of").append(std::to_string(count));
}

Status CheckResults(const Operation& operation, bool receives) {
  const wire::Signature& signature = operation.request.signature;
  if (!wire::WorksOnRows(signature.op) || operation.allocate_results) return Status::Ok();
  if (signature.device_class != wire::DeviceClass::kCpu) {
    return UnsupportedError(control::Describe(signature) +
                            " cannot store its result in a given tensor of a GPU; leave the output away");
  }
  std::vector<Place> results;
  const auto place = [&](const std::byte* begin, int64_t count, size_t index) {
    const size_t bytes = static_cast<size_t>(count) * DTypeBytes(signature.tensors[index].dtype);
    return Place{begin, begin == nullptr ? nullptr : begin + bytes, index};
  };
  for (size_t i = 0; i < operation.tensors.size(); ++i) {
    const TensorArgument& tensor = operation.tensors[i];
    const Place result = place(tensor.output, tensor.output_count, i);
    if (receives && tensor.output == nullptr && tensor.output_count > 0)
      return InvalidArgumentError(control::Describe(signature) + " has no memory for the result of tensor " +
                                  ShownName(signature.tensors[i]));
    if (result.begin != result.end) results.push_back(result);
  }
  std::ranges::sort(results, std::less<>(), &Place::begin);
  if (const auto shared = std::ranges::adjacent_find(results, Overlap); shared != results.end()) {
    const auto [first, second] = std::minmax(shared->index, (shared + 1)->index);
    return InvalidArgumentError(control::Describe(signature) + " has results of tensors " +
                                ShownName(signature.tensors[first]) + " and " + ShownName(signature.tensors[second]) +
                                " that share memory; give each its own");
  }
  for (size_t i = 0; i < operation.tensors.size(); ++i) {
    const Place input = place(operation.tensors[i].input, operation.tensors[i].count, i);
    // The results are apart, so the last one that begins before the input's end is the only one to look at.
    const auto after = std::ranges::lower_bound(results, input.end, std::less<>(), &Place::begin);
    if (input.begin == input.end || after == results.begin() || (after - 1)->end <= input.begin) continue;
    return InvalidArgumentError(control::Describe(signature) + " stores a result in the memory of tensor " +
                                ShownName(signature.tensors[i]) + "; give it a copy");
  }
  return Status::Ok();
}

Status CheckApart(const Operation& operation) {
  const wire::Signature& signature = operation.request.signature;
  // A broadcast may have tensors that share memory: tied parameters, which get equal values.
  const bool stores_sums = wire::HasReduceOp(signature.op) && control::Fuses(signature.op);
  if (operation.tensors.size() < 2 || !stores_sums) return Status::Ok();
  thread_local std::vector<Place> places;  // keeps its capacity, so that steady state allocates nothing
  places.clear();
  for (size_t i = 0; i < operation.tensors.size(); ++i) {
    const TensorArgument& tensor = operation.tensors[i];
    const size_t bytes = static_cast<size_t>(tensor.count) * DTypeBytes(signature.tensors[i].dtype);
    if (tensor.output != nullptr && bytes > 0) places.push_back({tensor.output, tensor.output + bytes, i});
  }
  std::ranges::sort(places, std::less<>(), &Place::begin);
  const auto found = std::ranges::adjacent_find(places, Overlap);
  if (found == places.end()) return Status::Ok();
  const auto [first, second] = std::minmax(found->index, (found + 1)->index);
  return {StatusCode::kInvalidArgument,
          "tensors " + ShownName(signature.tensors[first]) + " and " + ShownName(signature.tensors[second]) +
              " of one group share memory, so their results cannot both be stored. Give copies, or results of their "
              "own."};
}

void HoldBlocks(net::SharedHeap* heap, Operation* operation) {
  auto& blocks = operation->blocks;
  for (const TensorArgument& tensor : operation->tensors) {
    for (const std::byte* memory : {static_cast<const std::byte*>(tensor.output), tensor.input}) {
      if (memory == nullptr || (!blocks.empty() && blocks.back()->Holds(memory))) continue;
      if (std::shared_ptr<net::SharedBlock> block = heap->Find(memory); block != nullptr)
        blocks.push_back(std::move(block));
    }
  }
}

Status ReleaseBlocks(Operation* operation) {
  Status status;
  const wire::Signature& signature = operation->request.signature;
  for (std::shared_ptr<net::SharedBlock>& block : operation->blocks) {
    if (block.use_count() > 1) continue;
    const auto lies_in = [&block](const TensorArgument& tensor) {
      return block->Holds(tensor.input) || block->Holds(tensor.output);
    };
    const auto found = std::ranges::find_if(operation->tensors, lies_in);
    const auto index = static_cast<size_t>(found - operation->tensors.begin());
    status = {StatusCode::kInvalidArgument,
              "tensor " + ShownName(signature.tensors[index]) +
                  " was freed, or given other memory, while it was in flight (" + control::Describe(signature) +
                  "); the result is lost. Keep it as it is until synchronize() has returned."};
  }
  operation->blocks.clear();
  return status;
}

std::string NonFiniteText(const Operation& operation) {
  const wire::Signature& signature = operation.request.signature;
  const bool reduces = wire::HasReduceOp(signature.op);
  for (size_t i = 0; reduces && i < signature.tensors.size(); ++i) {
    const TensorArgument& tensor = operation.tensors[i];
    const data::NonFinite found = data::FindNonFinite(signature.tensors[i].dtype, tensor.input, tensor.count);
    if (found.count == 0) continue;
    return std::to_string(found.count) + " NaN or infinite of " + std::to_string(tensor.count) + " values" +
           (control::IsGroup(signature) ? " in tensor " + ShownName(signature.tensors[i]) : "") +
           ", the first at element " + std::to_string(found.first);
  }
  return "";
}

Status NoteDefect(bool check_finite, Operation* operation) {
  wire::Signature& signature = operation->request.signature;
  const std::string* const failed = FailedInput::Reason();
  if (failed != nullptr && wire::IsPointToPoint(signature.op))
    return {StatusCode::kInputFailed, "the message is not sent: this rank has " + *failed};
  if (failed == nullptr && !check_finite && signature.defect.empty()) return Status::Ok();
  signature.input_failed = failed != nullptr;
  signature.defect.clear();
  if (failed != nullptr) {
    signature.defect = *failed;
  } else if (check_finite) {
    signature.defect = NonFiniteText(*operation);
  }
  operation->prepared.same_request = false;
  return Status::Ok();
}

}  // namespace horocache::runtime
