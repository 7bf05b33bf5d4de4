// A communicator of the fake NCCL: the ranks' place in a shared segment, and the collectives that meet there.
//
// The segment is a memfd of the process that made the id; the other ranks open it through /proc, so nothing is left
// when processes are killed. Ranks may be processes or threads of one process. A collective is work of its stream: the
// ranks meet when their streams come to it, not when it is called.
//
//   FAKE_NCCL_ORDER=rank   sums begin with rank 0; by default each part of the data begins with another rank
//   FAKE_NCCL_INIT_MS=n    how long initialization takes; 0
//   FAKE_NCCL_IN_PROGRESS=n  calls of a non-blocking communicator are in progress for n states
//   FAKE_NCCL_SOCKET=1     ranks notice the death of any peer (RemoteError); by default only of peers on other hosts,
//   as
//                          the real ones do: those of one host have no socket between them
//   FAKE_NCCL_CHECK_DEVICE=1  two threads may not use communicators of one device at the same time
//   FAKE_HANG=1            collectives that do not match hang, instead of ending the process
//   NCCL_MULTI_RANK_GPU_ENABLE, NCCL_HOSTID, NCCL_RUNTIME_CONNECT: as the real ones
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "driver/driver.h"

namespace fake_gpu {

using Result = int;  // ncclResult_t
enum : Result {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

inline constexpr int kMaxRanks = 16;
inline constexpr size_t kAreaBytes = size_t{1} << 20;   // of each rank, for a part of the data
inline constexpr size_t kPipeBytes = size_t{64} << 10;  // between two ranks
inline constexpr int kRemembered = 8;                   // operations that a report of a mismatch shows

struct UniqueId {
  char bytes[128];
};

enum class Kind : uint32_t {
  kNone,
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAlltoAll,
  kGather,
  kScatter,
};

// The arguments of a collective that must be equal on all ranks.
struct Description {
  Kind kind = Kind::kNone;
  int32_t type = 0;
  int32_t operation = 0;
  int32_t root = -1;
  uint64_t place_in_window = 0;
  uint64_t count = 0;
  uint64_t number = 0;
};

struct Segment {
  std::atomic<int32_t> ranks;  // of the first that attached; the others must say the same
  struct Slot {
    enum : uint32_t { kAbsent, kAttached, kDestroyed, kAborted };
    std::atomic<uint32_t> state;
    std::atomic<int32_t> process;
    int32_t device;
    uint64_t host;
    std::atomic<uint64_t> posted;  // operations whose descriptions are in `recent`
    std::atomic<uint64_t> steps;   // barriers that the rank has come to
    std::atomic<uint32_t> connected;
    std::atomic<uint32_t> pipes[kMaxRanks];  // this rank has used its pipe to or from that rank
    Description recent[kRemembered];
    UniqueId split_id;
    int32_t split_color;
    int32_t split_key;
    std::atomic<uint64_t> splits;
  } slots[kMaxRanks];
  struct Pipe {
    std::atomic<uint64_t> written;
    std::atomic<uint64_t> read;
    std::byte data[kPipeBytes];
  } pipes[kMaxRanks][kMaxRanks];  // from, to
  std::byte areas[kMaxRanks][kAreaBytes];
};

struct Communicator {
  std::string name;
  int rank = 0;
  int ranks = 1;
  Device* device = nullptr;
  bool blocking = true;
  Segment* segment = nullptr;
  std::atomic<Result> state = ncclInProgress;
  std::atomic<bool> aborted = false;
  std::atomic<bool> revoked = false;
  std::atomic<int> under_way = 0;    // pieces of work in streams
  std::atomic<int> in_progress = 0;  // states that still say so
  std::atomic<uint64_t> posted = 0;  // by the works, in the order in which they run
  std::atomic<uint64_t> steps = 0;
  bool finalized = false;
  std::atomic<bool> dead = false;  // destroyed or aborted: any use is wrong
  std::atomic<std::thread::id> user{};
  uint64_t splits = 0;
  std::string last_error;
  struct CreatedOperation {
    int type = 0;
    std::vector<std::byte> factor;  // in the type
    Address device_factor = 0;      // 0: `factor` has it
  };
  std::map<int, CreatedOperation> operations;
  struct Window {
    Address begin = 0;
    size_t size = 0;
  };
  std::map<void*, Window> windows;
};

// One collective of a rank.
struct CollectiveCall {
  Description description;
  Address send = 0;
  Address receive = 0;
  std::vector<std::byte> factor;
  Address device_factor = 0;
};

// One send or receive of a rank.
struct MessageCall {
  bool sends = false;
  Address address = 0;
  size_t bytes = 0;
  int peer = 0;
};

// Makes an id and its segment, whose descriptor stays open to the end of the process: ranks may attach at any time.
Result MakeId(UniqueId* id);
// Maps the segment of an id; null: there is none.
Segment* OpenSegment(const UniqueId& id);
// Takes this rank's place and waits for the others.
Result Attach(Communicator* communicator, Segment* segment, std::string* why);

MakeWork MakeCollective(std::shared_ptr<Communicator> communicator, const CollectiveCall& call);
MakeWork MakeMessages(std::shared_ptr<Communicator> communicator, std::vector<MessageCall> calls);

// Waits, with the calling thread, for `done`; false: the communicator was aborted, or a peer is gone where that is
// seen.
bool Await(Communicator* communicator, const std::function<bool()>& done);

std::string KindName(Kind kind);

}  // namespace fake_gpu
