// What ranks tell each other: plain values, no behaviour. codec.h turns them into bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace horocache::wire {

enum class Op : uint8_t {
  kAllreduce,
  kAllgather,
  kBroadcast,
  kReducescatter,
  kAlltoall,
  kReduce,
  kGather,
  kScatter,
  kBarrier,
  kJoin,
  kRegister,
  kSend,
  kRecv,
};
inline constexpr int kNumOps = 13;

enum class ReduceOp : uint8_t {
  kAverage,
  kSum,
  kAdasum,
  kMin,
  kMax,
  kProduct,
  kAnd,
  kOr,
  kXor
};  // the first six have Horovod's numbers
inline constexpr int kNumReduceOps = 9;

enum class DeviceClass : uint8_t { kCpu, kCuda, kFake };
inline constexpr int kNumDeviceClasses = 3;

// What an average divides by once a rank has joined: the number of all ranks, or of those that still have data.
enum class DivideBy : uint8_t { kAll, kActive };
inline constexpr int kNumDivideBys = 2;

using CacheBit = uint32_t;
inline constexpr CacheBit kNoBit = ~CacheBit{0};

// Operations whose first dimension may differ between ranks; shape[0] is -1 in their signatures.
inline bool SizesDiffer(Op op) {
  return op == Op::kAllgather || op == Op::kAlltoall || op == Op::kGather || op == Op::kScatter;
}

inline bool HasRoot(Op op) {
  return op == Op::kBroadcast || op == Op::kReduce || op == Op::kGather || op == Op::kScatter;
}

// Messages between two ranks, which take part in no round; the other rank is the signature's `root`.
inline bool IsPointToPoint(Op op) { return op == Op::kSend || op == Op::kRecv; }

std::string_view OpName(Op op);
std::string_view ReduceOpName(ReduceOp op);
std::string_view DeviceClassName(DeviceClass device_class);
std::string_view DivideByName(DivideBy divide_by);
// kInvalidArgument for what is no name of one.
StatusOr<DivideBy> ParseDivideBy(std::string_view name);

// Name, element type and shape of one tensor. Where SizesDiffer, the true shape[0] travels with the data.
struct TensorMeta {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  bool operator==(const TensorMeta&) const = default;
};

// Everything that makes requests of different ranks compatible, and nothing that may differ between ranks. A group has
// several tensors.
struct Signature {
  Op op = Op::kAllreduce;
  ReduceOp reduce_op = ReduceOp::kSum;
  DeviceClass device_class = DeviceClass::kCpu;
  int32_t root = -1;     // rank within the process set (of a message: the other rank, of the job); -1 if there is none
  int32_t priority = 0;  // of what is agreed on in one round, higher runs earlier; see FusionPlanner
  double prescale = 1.0;
  double postscale = 1.0;
  DivideBy divide_by = DivideBy::kAll;  // for kJoin
  std::string layers;                   // the ordered list of layers, such as "compression=fp16"; empty for none
  std::string backend;                  // asked for by the caller; empty leaves it to the selector
  std::string name;                     // of the request: the tensor's name, or the group's
  std::vector<TensorMeta> tensors;
  // Why this rank's data cannot be used; empty if it can. Differs between ranks by its nature, so such a request is
  // never taken for a cached one, meets the others' at the coordinator, and fails for all.
  std::string defect;
  bool operator==(const Signature&) const = default;
};

// One rank's wish to run an operation.
struct Request {
  Signature signature;
  CacheBit changed_bit = kNoBit;  // the entry that this request replaces, if the name was cached with another signature
  bool operator==(const Request&) const = default;
};

// What a rank tells about itself in a round that gathers.
struct RequestList {
  uint32_t process_set = 0;
  uint32_t epoch = 0;
  uint64_t round = 0;
  int32_t rank = 0;
  bool leaving = false;      // this rank shuts down
  bool all_waiting = false;  // every thread that ever submitted here waits now
  bool computes = false;     // its threads have run lately, besides those of the core
  std::string error;         // this rank aborts: why
  std::vector<Request> requests;
  std::vector<CacheBit> stalled_bits;  // cached requests pending here for longer than the stall limit
  std::vector<CacheBit> pending_bits;  // the other cached requests pending here; sent when a stall is looked into
  std::string note;                    // for all ranks' people; see Note [Stacks of laggards] in controller.h
  std::string last_done;               // name of the last operation this rank completed, for stall reports
  std::vector<uint64_t> cache_hash;    // one word, filled when the AND of h and ~h showed a difference
  std::vector<uint64_t> words;         // the snapshot, where an agreement sends it instead of publishing it
  bool operator==(const RequestList&) const = default;
};

// How an agreed operation runs: chosen once, by the coordinator, and cached.
struct Choice {
  uint8_t backend = 0;    // index in the table of backends, whose hash is compared in every round
  uint8_t algorithm = 0;  // meaning belongs to the backend; 0 is its default
  uint16_t lane = 0;
  bool operator==(const Choice&) const = default;
};

// What all ranks have agreed to do: run (code kOk), or fail with the same message everywhere.
struct Response {
  Signature signature;
  Choice choice;
  StatusCode code = StatusCode::kOk;
  std::string message;
  int32_t last_joined = -1;    // for kJoin
  std::vector<int32_t> ranks;  // whom a failure concerns; empty: all who have it pending
  bool operator==(const Response&) const = default;
};

struct ResponseList {
  uint32_t process_set = 0;
  uint32_t epoch = 0;
  uint64_t round = 0;
  std::vector<CacheBit> erase;          // in this order, before any insertion
  std::vector<Response> responses;      // in this order
  std::vector<int32_t> joined;          // ranks that joined in this round: from here on they take part without data
  DivideBy divide_by = DivideBy::kAll;  // what the first of them asks for; if nobody had joined before
  std::vector<int32_t> left;            // ranks that have shut down; the process set is closed
  std::string report;                   // for people: a stall report or an abort; empty if none
  std::vector<int32_t> laggards;        // ranks that are to tell where they are
  StatusCode fatal = StatusCode::kOk;   // not kOk: everything pending fails with `report`
  std::vector<uint64_t> words;          // the AND of the snapshots, where an agreement sends it in a frame
  bool operator==(const ResponseList&) const = default;
};

}  // namespace horocache::wire
