// The messages that ranks exchange: plain values without behaviour. codec.h encodes them as bytes.
#pragma once

#include <array>
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
  kRegister,  // adds or removes a process set
  kSend,
  kRecv,
};

// The properties of one operation. They are all that most parts of the system know about it.
struct OpTraits {
  std::string_view name;
  bool on_backends = false;    // a backend runs it; the control plane or the message engine runs the others
  bool has_reduce_op = false;  // it reduces elements, so it has a reduce op and scale factors
  bool has_root = false;
  bool sizes_differ = false;  // its first dimension may differ between ranks; shape[0] is -1 in its signatures
  // All tensors of one request, and of several requests, may travel in one collective as segments of one element type.
  // The caller provides the memory of the results, which have the shapes of the tensors.
  bool fuses = false;
};

// One row for each Op, in its order.
inline constexpr auto kOps = std::to_array<OpTraits>({
    {.name = "allreduce", .on_backends = true, .has_reduce_op = true, .fuses = true},
    {.name = "allgather", .on_backends = true, .sizes_differ = true},
    {.name = "broadcast", .on_backends = true, .has_root = true, .fuses = true},
    {.name = "reducescatter", .on_backends = true, .has_reduce_op = true},
    {.name = "alltoall", .on_backends = true, .sizes_differ = true},
    {.name = "reduce", .on_backends = true, .has_reduce_op = true, .has_root = true, .fuses = true},
    {.name = "gather", .on_backends = true, .has_root = true, .sizes_differ = true},
    {.name = "scatter", .on_backends = true, .has_root = true, .sizes_differ = true},
    {.name = "barrier", .on_backends = true},
    {.name = "join"},
    {.name = "register"},
    {.name = "send"},
    {.name = "recv"},
});
inline constexpr int kNumOps = static_cast<int>(kOps.size());
static_assert(kNumOps == static_cast<int>(Op::kRecv) + 1, "one row for each Op");
static_assert(kNumOps <= 16, "the header of a tile has 4 bits for the operation (data/backends/shm/task.cc)");

constexpr const OpTraits& TraitsOf(Op op) { return kOps[static_cast<size_t>(op)]; }

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

// The divisor of averages once a rank has joined: the number of all ranks, or of the ranks that still have data.
enum class DivideBy : uint8_t { kAll, kActive };
inline constexpr int kNumDivideBys = 2;

using CacheBit = uint32_t;
inline constexpr CacheBit kNoBit = ~CacheBit{0};

inline bool SizesDiffer(Op op) { return TraitsOf(op).sizes_differ; }
inline bool HasRoot(Op op) { return TraitsOf(op).has_root; }
inline bool HasReduceOp(Op op) { return TraitsOf(op).has_reduce_op; }

// True for the collectives that move rows: their results have other sizes than their tensors.
inline bool WorksOnRows(Op op) { return TraitsOf(op).on_backends && !TraitsOf(op).fuses && op != Op::kBarrier; }

// True for messages between two ranks. They take part in no round; the other rank is the signature's `root`.
inline bool IsPointToPoint(Op op) { return op == Op::kSend || op == Op::kRecv; }

std::string_view OpName(Op op);
std::string_view ReduceOpName(ReduceOp op);
std::string_view DeviceClassName(DeviceClass device_class);
std::string_view DivideByName(DivideBy divide_by);
// kInvalidArgument if the name is unknown.
StatusOr<DivideBy> ParseDivideBy(std::string_view name);

// Name, element type and shape of one tensor. If SizesDiffer, the true shape[0] travels with the data.
struct TensorMeta {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  bool operator==(const TensorMeta&) const = default;
};

// Everything that must be equal for the requests of different ranks to be compatible, and nothing that may differ
// between ranks, except `defect` and `input_failed`. A group has several tensors.
struct Signature {
  Op op = Op::kAllreduce;
  ReduceOp reduce_op = ReduceOp::kSum;
  DeviceClass device_class = DeviceClass::kCpu;
  int32_t root = -1;     // rank within the process set (of a message: the other rank, of the job); -1 if there is none
  int32_t priority = 0;  // of the operations that one round agrees on, higher runs earlier; see FusionPlanner
  double prescale = 1.0;
  double postscale = 1.0;
  DivideBy divide_by = DivideBy::kAll;  // for kJoin
  std::string layers;                   // the ordered list of layers, such as "compression=fp16"; empty for none
  std::string backend;                  // the backends that the caller asks for, see Selector::Choose; empty: any
  std::string name;                     // name of the request: the tensor's name, or the group's
  std::vector<TensorMeta> tensors;
  // The reason why this rank's data cannot be used; empty if it can. It may differ between ranks, so a request with a
  // defect never hits the cache: it goes to the coordinator and fails on all ranks.
  std::string defect;
  bool input_failed = false;  // the defect: the program could not compute the data
  bool operator==(const Signature&) const = default;
};

// One rank's request to run an operation.
struct Request {
  Signature signature;
  CacheBit changed_bit = kNoBit;  // the entry that this request replaces, if its name is cached with another signature
  bool operator==(const Request&) const = default;
};

// A rank's message to the coordinator in a round that gathers requests.
struct RequestList {
  uint32_t process_set = 0;
  uint32_t epoch = 0;
  uint64_t round = 0;
  int32_t rank = 0;
  bool leaving = false;      // this rank leaves the process set
  bool all_waiting = false;  // every thread that ever submitted here waits now
  bool computes = false;     // its threads, other than the core's, have run lately
  std::string error;         // why this rank aborts; empty if it does not
  std::vector<Request> requests;
  std::vector<CacheBit> stalled_bits;  // cached requests pending here for longer than the stall limit
  std::vector<CacheBit> pending_bits;  // the other cached requests pending here; sent for stall inspections
  std::string note;       // for the logs of all ranks; see Note [Stack traces in stall reports] in controller.h
  std::string last_done;  // name of the last operation this rank completed, for stall reports
  std::vector<uint64_t> cache_hash;  // one word, filled in if the hash words of the AND showed a difference
  bool operator==(const RequestList&) const = default;
};

// The reason for which an operation runs as it does: nothing but the order of backends, the caller, a rule of the
// user's or of a program, or a rule of the tuning table.
enum class ChosenBy : uint8_t { kOrder, kCall, kRule, kTable };
inline constexpr int kNumChosenBys = 4;
std::string_view ChosenByName(ChosenBy chosen_by);

// How an agreed operation runs. The coordinator chooses it once, and the response cache keeps it.
struct Choice {
  uint8_t backend = 0;    // index in the table of backends, whose hash is compared in every round
  uint8_t algorithm = 0;  // defined by the backend; 0 is its default
  uint16_t lane = 0;
  ChosenBy chosen_by = ChosenBy::kOrder;  // for logs
  bool operator==(const Choice&) const = default;
  // True if operations with these choices run alike, so that they may be fused.
  bool RunsAs(const Choice& other) const {
    return backend == other.backend && algorithm == other.algorithm && lane == other.lane;
  }
};

// The agreed answer to a request: all ranks run the operation (code kOk), or fail with the same message on every rank.
struct Response {
  Signature signature;
  Choice choice;
  StatusCode code = StatusCode::kOk;
  std::string message;
  int32_t last_joined = -1;    // for kJoin
  std::vector<int32_t> ranks;  // the ranks that a failure concerns; empty: all ranks that have the request pending
  bool operator==(const Response&) const = default;
};

// The coordinator's message to all ranks, which ends a round that gathers requests.
struct ResponseList {
  uint32_t process_set = 0;
  uint32_t epoch = 0;
  uint64_t round = 0;
  std::vector<CacheBit> erase;          // cache bits to erase, in this order, before any insertion
  std::vector<Response> responses;      // in this order
  std::vector<int32_t> joined;          // ranks that joined in this round: from now on they take part without data
  DivideBy divide_by = DivideBy::kAll;  // the choice of the first of them, if no rank had joined before
  std::vector<int32_t> left;            // ranks that have left; the process set is closed
  std::string report;                   // for the log: a stall report or an abort; empty if there is none
  std::vector<int32_t> late_ranks;      // late ranks that are asked for their stack traces
  std::string settings;                 // see control::Settings; empty: they stay as they are
  StatusCode fatal = StatusCode::kOk;   // not kOk: every pending operation fails with `report`
  bool operator==(const ResponseList&) const = default;
};

}  // namespace horocache::wire
