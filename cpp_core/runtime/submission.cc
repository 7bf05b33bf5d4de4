#include "runtime/submission.h"

#include <string>

namespace horocache::runtime {

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

}  // namespace horocache::runtime
