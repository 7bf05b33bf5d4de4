#include "runtime/p2p/message_operation.h"

#include <utility>

namespace horocache::runtime {
namespace {

std::string SetText(const Operation& operation) {
  return operation.process_set == 0 ? "" : " in process set " + std::to_string(operation.process_set);
}

}  // namespace

FrameHead HeadOf(FrameKind kind, const Operation& operation, uint64_t id) {
  return {.kind = kind,
          .dtype = static_cast<uint8_t>(DTypeOf(operation)),
          .process_set = operation.process_set,
          .tag = operation.tag,
          .id = id,
          .count = CountOf(operation)};
}

std::string ElementsText(int64_t count, DType dtype) {
  return std::to_string(count) + " element" + (count == 1 ? "" : "s") + " of " + std::string(DTypeName(dtype));
}

std::string DescribeMessage(const Operation& operation) {
  return std::string(IsSend(operation) ? "send to rank " : "recv from rank ") + std::to_string(PeerRank(operation)) +
         " with tag " + std::to_string(operation.tag) + SetText(operation) + " (" + std::to_string(BytesOf(operation)) +
         " bytes)";
}

Status CheckMessage(const Operation& operation, int ranks) {
  const wire::Signature& signature = operation.request.signature;
  const std::string what(wire::OpName(signature.op));
  if (signature.tensors.size() != 1 || operation.tensors.size() != 1) {
    return InvalidArgumentError("a " + what + " takes one tensor, not " + std::to_string(signature.tensors.size()));
  }
  if (signature.device_class != wire::DeviceClass::kCpu) {
    return {StatusCode::kUnsupported, what + " moves tensors in the host's memory, not in " +
                                          std::string(wire::DeviceClassName(signature.device_class)) +
                                          " memory; copy the tensor to the host first"};
  }
  if (PeerRank(operation) < 0 || PeerRank(operation) >= ranks) {
    return InvalidArgumentError(what + ": rank " + std::to_string(PeerRank(operation)) + " is not one of " +
                                std::to_string(ranks) + " ranks");
  }
  if (operation.tag < 0) return InvalidArgumentError(what + ": tag " + std::to_string(operation.tag) + " is below 0");
  const auto item = static_cast<int64_t>(DTypeBytes(DTypeOf(operation)));
  if (CountOf(operation) < 0 || CountOf(operation) > kMaxMessageBytes / item) {
    return InvalidArgumentError(what + ": a tensor of " + std::to_string(CountOf(operation)) + " elements");
  }
  const TensorArgument& tensor = operation.tensors[0];
  if (CountOf(operation) > 0 && (IsSend(operation) ? tensor.input == nullptr : tensor.output == nullptr)) {
    return InvalidArgumentError(what + ": the tensor has no memory to " +
                                (IsSend(operation) ? "send from" : "receive into") + "; a recv needs an output");
  }
  return Status::Ok();
}

Status CompareMessage(const Operation& own, int rank, const FrameHead& other) {
  const auto other_dtype = static_cast<DType>(other.dtype);
  if (DTypeOf(own) == other_dtype && CountOf(own) == other.count) return Status::Ok();
  std::string sends = ElementsText(CountOf(own), DTypeOf(own));
  std::string receives = ElementsText(other.count, other_dtype);
  int source = rank;
  int destination = PeerRank(own);
  if (!IsSend(own)) {
    std::swap(sends, receives);
    std::swap(source, destination);
  }
  return {StatusCode::kMismatch, "a message from rank " + std::to_string(source) + " to rank " +
                                     std::to_string(destination) + " with tag " + std::to_string(own.tag) +
                                     SetText(own) + ": rank " + std::to_string(source) + " sends " + sends + ", rank " +
                                     std::to_string(destination) + " receives " + receives +
                                     ". Element types and numbers of elements must be equal."};
}

}  // namespace horocache::runtime
