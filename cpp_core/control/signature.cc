#include "control/signature.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/text.h"
#include "control/hashing.h"
#include "wire/codec.h"

namespace horocache::control {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 62;

Status Invalid(const wire::Signature& signature, const std::string& why) {
  return {StatusCode::kInvalidArgument, Describe(signature) + ": " + why};
}

Status ValidateName(const wire::Signature& signature, const std::string& name) {
  if (name.empty()) return Invalid(signature, "a name must not be empty.");
  if (name.size() > wire::kMaxNameBytes) {
    return {StatusCode::kInvalidArgument, "a tensor name of " + std::to_string(name.size()) +
                                              " bytes was submitted; at most " + std::to_string(wire::kMaxNameBytes) +
                                              " are allowed. It begins with '" + Printable(name.substr(0, 64)) + "'."};
  }
  return Status::Ok();
}

Status ValidateTensor(const wire::Signature& signature, const wire::TensorMeta& tensor) {
  HC_RETURN_IF_ERROR(ValidateName(signature, tensor.name));
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    const bool open = i == 0 && wire::SizesDiffer(signature.op);
    if (tensor.shape[i] < (open ? -1 : 0)) {
      return Invalid(signature, "tensor '" + Printable(tensor.name) + "' has a dimension of " +
                                    std::to_string(tensor.shape[i]) + ".");
    }
  }
  if (TensorBytes(tensor) >= kMaxBytes) {
    return Invalid(signature, "tensor '" + Printable(tensor.name) + "' is larger than 2^62 bytes.");
  }
  return Status::Ok();
}

}  // namespace

int64_t TensorBytes(const wire::TensorMeta& tensor) {
  // A zero anywhere makes the tensor empty, however large the other dimensions are.
  if (std::ranges::find(tensor.shape, 0) != tensor.shape.end()) return 0;
  int64_t bytes = static_cast<int64_t>(DTypeBytes(tensor.dtype));
  for (const int64_t dimension : tensor.shape) {
    const int64_t factor = std::max<int64_t>(dimension, 1);
    if (bytes > kMaxBytes / factor) return kMaxBytes;
    bytes *= factor;
  }
  return bytes;
}

int64_t SignatureBytes(const wire::Signature& signature) {
  int64_t sum = 0;
  for (const wire::TensorMeta& tensor : signature.tensors) sum = std::min(kMaxBytes, sum + TensorBytes(tensor));
  return sum;
}

uint64_t HashOf(const wire::Signature& signature) {
  Hasher hash;
  hash.Add(static_cast<uint64_t>(signature.op) | static_cast<uint64_t>(signature.reduce_op) << 8 |
           static_cast<uint64_t>(signature.device_class) << 16 | static_cast<uint64_t>(signature.divide_by) << 24);
  hash.Add(static_cast<uint64_t>(static_cast<int64_t>(signature.root)));
  hash.Add(static_cast<uint64_t>(static_cast<int64_t>(signature.priority)));
  hash.Add(std::bit_cast<uint64_t>(signature.prescale));
  hash.Add(std::bit_cast<uint64_t>(signature.postscale));
  hash.Add(signature.layers);
  hash.Add(signature.backend);
  hash.Add(signature.name);
  for (const wire::TensorMeta& tensor : signature.tensors) {
    hash.Add(tensor.name);
    hash.Add(static_cast<uint64_t>(tensor.dtype));
    hash.Add(tensor.shape.size());
    for (const int64_t dimension : tensor.shape) hash.Add(static_cast<uint64_t>(dimension));
  }
  return hash.value();
}

std::string Describe(const wire::Signature& signature) {
  return std::string(wire::OpName(signature.op)) + " '" + Printable(signature.name) + "'";
}

Status Validate(const wire::Signature& signature, int world) {
  HC_RETURN_IF_ERROR(ValidateName(signature, signature.name));
  if (wire::IsPointToPoint(signature.op)) {
    return Invalid(signature, "point-to-point operations do not take part in rounds.");
  }
  const bool without_tensors =
      signature.op == wire::Op::kBarrier || signature.op == wire::Op::kJoin || signature.op == wire::Op::kRegister;
  if (signature.tensors.empty() && !without_tensors) return Invalid(signature, "there is no tensor.");
  for (const wire::TensorMeta& tensor : signature.tensors) HC_RETURN_IF_ERROR(ValidateTensor(signature, tensor));
  if (wire::HasRoot(signature.op) && (signature.root < 0 || signature.root >= world)) {
    return Invalid(signature, "root " + std::to_string(signature.root) + " is not a rank of a process set of " +
                                  std::to_string(world) + " ranks (0 to " + std::to_string(world - 1) + ").");
  }
  if (!std::isfinite(signature.prescale) || !std::isfinite(signature.postscale)) {
    return Invalid(signature, "a scale factor is not finite.");
  }
  if (signature.layers.size() > wire::kMaxNameBytes || signature.backend.size() > wire::kMaxNameBytes) {
    return Invalid(signature,
                   "the text of layers or backend is longer than " + std::to_string(wire::kMaxNameBytes) + " bytes.");
  }
  return Status::Ok();
}

}  // namespace horocache::control
