#include "runtime/submission.h"

#include <string>

#include "base/text.h"
#include "control/signature.h"
#include "data/kernels/finite.h"

namespace horocache::runtime {
namespace {

constexpr size_t kMostShown = 256;  // bytes of a name; the text travels, and may have wire::kMaxNameBytes

}  // namespace

void DescribeTensor(size_t index, DType dtype, std::span<const int64_t> shape, const std::byte* data,
                    Operation* operation) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  operation->tensors[index] = {data, nullptr, count, shape.empty() ? 1 : shape[0]};
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
  if (dtype != expected || count != tensor.count) {
    return {StatusCode::kInvalidArgument, "output " + std::to_string(index) + " has " + std::to_string(count) +
                                              " elements of " + std::string(DTypeName(dtype)) + ", its input has " +
                                              std::to_string(tensor.count) + " of " + std::string(DTypeName(expected))};
  }
  tensor.output = data;
  return Status::Ok();
}

void NameMember(size_t index, bool group, wire::Signature* signature) {
  std::string& member = signature->tensors[index].name;
  member = signature->name;
  const size_t count = signature->tensors.size();
  if (count == 1 && (!group || signature->name.empty())) return;
  member.append("_").append(std::to_string(index + 1)).append("of").append(std::to_string(count));
}

std::string NonFiniteText(const Operation& operation) {
  const wire::Signature& signature = operation.request.signature;
  const bool reduces = signature.op == wire::Op::kAllreduce || signature.op == wire::Op::kReducescatter ||
                       signature.op == wire::Op::kReduce;
  for (size_t i = 0; reduces && i < signature.tensors.size(); ++i) {
    const TensorArgument& tensor = operation.tensors[i];
    const data::NonFinite found = data::FindNonFinite(signature.tensors[i].dtype, tensor.input, tensor.count);
    if (found.count == 0) continue;
    return std::to_string(found.count) + " NaN or infinite of " + std::to_string(tensor.count) + " values" +
           (control::IsGroup(signature)
                ? " in tensor '" + Printable(signature.tensors[i].name.substr(0, kMostShown)) + "'"
                : "") +
           ", the first at element " + std::to_string(found.first);
  }
  return "";
}

}  // namespace horocache::runtime
