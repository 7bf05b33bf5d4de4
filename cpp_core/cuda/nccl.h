// NCCL (libnccl.so.2), loaded at run time, as the driver is (driver.h).
//
// Values and signatures are those of NCCL 2.14 and later. Every function of the library that horocache calls is a
// method of Nccl, with the name that it has without "nccl". Once exit() has begun, no method calls the library; see
// Note [Exit of the process] in driver.h.
//
// Threads: any; NCCL itself allows one thread at a time for a communicator, and for the communicators of a device.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/dynlib.h"
#include "base/status.h"
#include "cuda/driver.h"

namespace horocache::cuda {

using NcclResult = int;          // ncclResult_t
using NcclCommHandle = void*;    // ncclComm_t
using NcclDataType = int;        // ncclDataType_t
using NcclOperation = int;       // ncclRedOp_t
using NcclWindowHandle = void*;  // ncclWindow_t
struct NcclUniqueId {            // passed by value
  char bytes[128];
};

inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclInProgress = 7;
inline constexpr NcclResult kNcclExiting = -1;  // of ours: the library was not called, because the process exits
inline constexpr NcclDataType kNcclUint8 = 1;
inline constexpr int kNcclScalarOnHost = 1;  // ncclScalarHostImmediate
inline constexpr int kNcclSymmetric = 1;     // NCCL_WIN_COLL_SYMMETRIC

// The part of ncclConfig_t that is set; NCCL appends fields with its versions. A library takes a configuration of any
// older version, if size and version say so.
struct NcclConfig {
  size_t size = 0;
  unsigned magic = 0xcafebeef;
  unsigned version = 0;
  int blocking = 1;
  int cga_cluster_size = INT_MIN;  // INT_MIN: NCCL chooses
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* network = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;
  const char* name = nullptr;  // of the communicator, in NCCL's own messages
  int collnet_enable = INT_MIN;
  int cta_policy = INT_MIN;
  int shrink_share = INT_MIN;
  int nvls_ctas = INT_MIN;
};
static_assert(sizeof(NcclConfig) == 72);

// Method, parameters, arguments.
#define HC_NCCL_FUNCTIONS(X)                                                                                         \
  X(GetVersion, (int* version), (version))                                                                           \
  X(GetUniqueId, (NcclUniqueId * id), (id))                                                                          \
  X(CommInitRankConfig, (NcclCommHandle * comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config),           \
    (comm, ranks, id, rank, config))                                                                                 \
  X(CommAbort, (NcclCommHandle comm), (comm))                                                                        \
  X(CommDestroy, (NcclCommHandle comm), (comm))                                                                      \
  X(CommGetAsyncError, (NcclCommHandle comm, NcclResult * error), (comm, error))                                     \
  X(GroupStart, (), ())                                                                                              \
  X(GroupEnd, (), ())                                                                                                \
  X(AllReduce,                                                                                                       \
    (const void* send, void* receive, size_t count, NcclDataType type, NcclOperation operation, NcclCommHandle comm, \
     StreamHandle stream),                                                                                           \
    (send, receive, count, type, operation, comm, stream))                                                           \
  X(Reduce,                                                                                                          \
    (const void* send, void* receive, size_t count, NcclDataType type, NcclOperation operation, int root,            \
     NcclCommHandle comm, StreamHandle stream),                                                                      \
    (send, receive, count, type, operation, root, comm, stream))                                                     \
  X(Broadcast,                                                                                                       \
    (const void* send, void* receive, size_t count, NcclDataType type, int root, NcclCommHandle comm,                \
     StreamHandle stream),                                                                                           \
    (send, receive, count, type, root, comm, stream))                                                                \
  X(AllGather,                                                                                                       \
    (const void* send, void* receive, size_t count, NcclDataType type, NcclCommHandle comm, StreamHandle stream),    \
    (send, receive, count, type, comm, stream))                                                                      \
  X(ReduceScatter,                                                                                                   \
    (const void* send, void* receive, size_t count, NcclDataType type, NcclOperation operation, NcclCommHandle comm, \
     StreamHandle stream),                                                                                           \
    (send, receive, count, type, operation, comm, stream))                                                           \
  X(Send, (const void* buffer, size_t count, NcclDataType type, int peer, NcclCommHandle comm, StreamHandle stream), \
    (buffer, count, type, peer, comm, stream))                                                                       \
  X(Recv, (void* buffer, size_t count, NcclDataType type, int peer, NcclCommHandle comm, StreamHandle stream),       \
    (buffer, count, type, peer, comm, stream))                                                                       \
  X(RedOpCreatePreMulSum,                                                                                            \
    (NcclOperation * operation, void* scalar, NcclDataType type, int residence, NcclCommHandle comm),                \
    (operation, scalar, type, residence, comm))                                                                      \
  X(RedOpDestroy, (NcclOperation operation, NcclCommHandle comm), (operation, comm))

// Those of windows, which an older version lacks.
#define HC_NCCL_WINDOW_FUNCTIONS(X)                                                                             \
  X(MemAlloc, (void** memory, size_t bytes), (memory, bytes))                                                   \
  X(MemFree, (void* memory), (memory))                                                                          \
  X(CommWindowRegister, (NcclCommHandle comm, void* memory, size_t bytes, NcclWindowHandle* window, int flags), \
    (comm, memory, bytes, window, flags))                                                                       \
  X(CommWindowDeregister, (NcclCommHandle comm, NcclWindowHandle window), (comm, window))

// Where the library is looked for.
struct NcclSearch {
  std::string library;               // the file that the user has named; empty: none
  std::vector<std::string> folders;  // looked into before the system's
  bool loaded_only = false;          // true: unless a file is named, only one that the process has loaded already
};

class Nccl {
 public:
  static constexpr int kOldestVersion = 21403;  // 2.14.3, which has communicators with a configuration
  static constexpr int kOldestWithWindows = 22703;

  // Loads the file that the user has named, or the one that the process has loaded already, or the first of the
  // folders', or the system's. Makes no call that needs a GPU. kUnsupported, naming the file and the remedy, if none
  // can be loaded, if it is older than kOldestVersion, or if the named file is not the one that is loaded: two copies
  // in one process do not work.
  static StatusOr<std::shared_ptr<const Nccl>> Load(const NcclSearch& search);

#define HC_NCCL_METHOD(name, parameters, arguments) \
  NcclResult name parameters const { return Exiting() ? kNcclExiting : functions_.name arguments; }
  HC_NCCL_FUNCTIONS(HC_NCCL_METHOD)
  HC_NCCL_WINDOW_FUNCTIONS(HC_NCCL_METHOD)  // require has_windows
#undef HC_NCCL_METHOD

  const std::string& path() const { return library_.path(); }
  int version() const { return version_; }  // for example 22809 for 2.28.9
  // True if memory can be registered as a window of all ranks.
  bool has_windows() const { return functions_.CommWindowDeregister != nullptr; }
  static std::string VersionText(int version);
  // A configuration that this version of the library knows.
  NcclConfig Config() const;

  // Ok for kNcclSuccess. Otherwise an error with the call, its code, and NCCL's own texts.
  Status Check(NcclResult result, const char* call, NcclCommHandle comm = nullptr) const;

 private:
#define HC_NCCL_POINTER(name, parameters, arguments) NcclResult(*name) parameters = nullptr;
  struct Functions {
    HC_NCCL_FUNCTIONS(HC_NCCL_POINTER)
    HC_NCCL_WINDOW_FUNCTIONS(HC_NCCL_POINTER)
    const char* (*GetErrorString)(NcclResult) = nullptr;
    const char* (*GetLastError)(NcclCommHandle) = nullptr;
  };
#undef HC_NCCL_POINTER

  Nccl() = default;
  Status Find();
  Status CheckVersion();

  DynamicLibrary library_;
  Functions functions_;
  int version_ = 0;
};

// The type of NCCL for a dtype, with which it computes; nullopt: it has none.
std::optional<NcclDataType> NcclTypeOf(DType dtype);

}  // namespace horocache::cuda
