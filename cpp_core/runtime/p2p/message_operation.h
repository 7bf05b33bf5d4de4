// Accessors, checks and texts of operations that send or receive a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/status.h"
#include "runtime/p2p/matching.h"
#include "runtime/p2p/wire_format.h"
#include "runtime/submission/operation.h"

namespace horocache::runtime {

inline bool IsSend(const Operation& operation) { return operation.request.signature.op == wire::Op::kSend; }
// The peer's rank in the job.
inline int PeerRank(const Operation& operation) { return operation.request.signature.root; }
inline DType DTypeOf(const Operation& operation) { return operation.request.signature.tensors[0].dtype; }
inline int64_t CountOf(const Operation& operation) { return operation.tensors[0].count; }
inline size_t BytesOf(const Operation& operation) {
  return static_cast<size_t>(CountOf(operation)) * DTypeBytes(DTypeOf(operation));
}
inline MessageKey KeyOf(const Operation& receive) { return {PeerRank(receive), receive.process_set, receive.tag}; }

// Returns a head of this kind that describes the operation's tensor.
FrameHead HeadOf(FrameKind kind, const Operation& operation, uint64_t id = 0);

// Texts for logs and errors: "10 elements of float32"; "send to rank 2 with tag 7 (40 bytes)".
std::string ElementsText(int64_t count, DType dtype);
std::string DescribeMessage(const Operation& operation);

// Returns kInvalidArgument or kUnsupported unless the operation is a send or recv that a job of `ranks` ranks can run.
Status CheckMessage(const Operation& operation, int ranks);

// Returns kMismatch unless the other side's head has the element type and count of this rank's operation. Both ranks
// get the same text. `rank` is this rank.
Status CompareMessage(const Operation& own, int rank, const FrameHead& other);

inline constexpr int64_t kMaxMessageBytes = int64_t{1} << 62;

}  // namespace horocache::runtime
