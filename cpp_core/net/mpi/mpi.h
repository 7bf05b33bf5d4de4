// The part of MPI that horocache uses. The library is found with dlopen and used without mpi.h, through one interface
// over the three binary interfaces (ABIs) of MPI libraries.
//
// Note [Three ABIs]
// MPI's functions have the same names in every library, but handles differ in type (pointers in the standard ABI and in
// Open MPI, ints in the MPICH family), constants in value, and MPI_Status in layout. abi_table.cc fills one table of
// functions and one of constants for each ABI; no other part of horocache depends on the library in use. The constants
// are facts of the MPI 5.0 standard (ABI chapter), Open MPI's ABI since 1.3, and the MPICH ABI initiative.
//
// Threads: after InitThread with kMultiple, any thread, as in MPI itself. Functions do not wait for other ranks, except
// where their comments say so: they start a request, and Test tells when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/dynlib.h"
#include "base/status.h"

namespace horocache::net {

enum class MpiAbi { kStandard, kOpenMpi, kMpich };
enum class MpiThreads { kSingle, kFunneled, kSerialized, kMultiple };

std::string_view MpiAbiName(MpiAbi abi);
std::string_view MpiThreadsName(MpiThreads level);

// Handles: wide enough for a pointer and for an int.
struct MpiComm {
  uintptr_t handle = 0;
};
struct MpiRequest {
  uintptr_t handle = 0;
};
struct MpiMessage {  // a message that has arrived and has not been received yet
  uintptr_t handle = 0;
};
struct MpiType {
  uintptr_t handle = 0;
};
struct MpiOp {
  uintptr_t handle = 0;
};
struct MpiWin {
  uintptr_t handle = 0;
};

enum class MpiReduction { kSum, kProduct, kMin, kMax, kAnd, kOr, kXor };
inline constexpr int kNumMpiReductions = 7;

// MPI_User_function: folds `*count` elements of `in` into `inout`.
using MpiFold = void (*)(void* in, void* inout, int* count, void* type);

class Mpi {
 public:
  virtual ~Mpi() = default;

  // Resolves the library's functions. kUnsupported, naming the file, if it is not an MPI library or lacks a function.
  static StatusOr<std::unique_ptr<Mpi>> Load(DynamicLibrary library);

  virtual MpiAbi abi() const = 0;
  virtual const std::string& path() const = 0;  // path of the library
  virtual std::string Version() const = 0;      // first line of the library's version text

  // ---- the process
  virtual bool Initialized() const = 0;
  virtual bool Finalized() const = 0;
  virtual StatusOr<MpiThreads> InitThread(MpiThreads wanted) = 0;  // waits for all ranks, without a limit
  virtual MpiThreads QueryThread() const = 0;
  virtual Status Finalize() = 0;  // waits for all ranks, without a limit

  // ---- communicators
  virtual MpiComm world() const = 0;
  virtual int Rank(MpiComm comm) const = 0;
  virtual int Size(MpiComm comm) const = 0;
  // `copy` must stay valid until the request is complete: the library writes the handle then.
  virtual Status StartDup(MpiComm comm, MpiComm* copy, MpiRequest* request) = 0;
  // Waits for all of `ranks`, without a limit.
  virtual Status CreateGroup(MpiComm comm, const std::vector<int>& ranks, int tag, MpiComm* group) = 0;
  // Makes errors on `comm` come back as Status; by default they end the process.
  virtual Status ReturnErrors(MpiComm comm) = 0;
  virtual Status Free(MpiComm* comm) = 0;

  // ---- elements
  virtual MpiType byte() const = 0;
  // The MPI type of a dtype, with MPI's own arithmetic. A dtype for which MPI has no arithmetic (f16, bf16, bool) maps
  // to an unsigned integer of its size, for reductions made by MakeOp.
  virtual MpiType TypeOf(DType dtype) const = 0;
  virtual MpiOp OpOf(MpiReduction reduction) const = 0;
  virtual StatusOr<MpiOp> MakeOp(MpiFold fold) = 0;
  virtual Status FreeOp(MpiOp* op) = 0;
  virtual void* in_place() const = 0;

  // ---- starting requests; counts in elements
  virtual Status Isend(const void* data, int count, MpiType type, int to, int tag, MpiComm comm,
                       MpiRequest* request) = 0;
  virtual Status Irecv(void* data, int count, MpiType type, int from, int tag, MpiComm comm, MpiRequest* request) = 0;
  virtual Status Iallreduce(const void* in, void* out, int count, MpiType type, MpiOp op, MpiComm comm,
                            MpiRequest* request) = 0;
  virtual Status Ireduce(const void* in, void* out, int count, MpiType type, MpiOp op, int root, MpiComm comm,
                         MpiRequest* request) = 0;
  virtual Status Ibcast(void* data, int count, MpiType type, int root, MpiComm comm, MpiRequest* request) = 0;
  virtual Status Iallgatherv(const void* in, int count, void* out, const int* counts, const int* starts, MpiType type,
                             MpiComm comm, MpiRequest* request) = 0;
  virtual Status Ialltoallv(const void* in, const int* in_counts, const int* in_starts, void* out,
                            const int* out_counts, const int* out_starts, MpiType type, MpiComm comm,
                            MpiRequest* request) = 0;
  virtual Status Igatherv(const void* in, int count, void* out, const int* counts, const int* starts, MpiType type,
                          int root, MpiComm comm, MpiRequest* request) = 0;
  virtual Status Iscatterv(const void* in, const int* counts, const int* starts, void* out, int count, MpiType type,
                           int root, MpiComm comm, MpiRequest* request) = 0;
  virtual Status Ibarrier(MpiComm comm, MpiRequest* request) = 0;

  struct Received {
    int from = -1;
    int tag = -1;
    int count = 0;  // bytes
  };
  // Takes the next message with `tag` that has arrived, from any source; false if there is none.
  virtual StatusOr<bool> Improbe(int tag, MpiComm comm, MpiMessage* message, Received* received) = 0;
  virtual Status Imrecv(void* data, int count, MpiType type, MpiMessage* message, MpiRequest* request) = 0;

  // ---- one-sided operations; offsets in bytes
  // Exposes memory to the ranks of `comm`, and starts access to theirs, for as long as the window lives. Waits for all
  // ranks, without a limit. Errors on the window come back as Status.
  virtual Status CreateWindow(void* memory, size_t bytes, MpiComm comm, MpiWin* window) = 0;
  // Waits for all ranks, without a limit.
  virtual Status FreeWindow(MpiWin* window) = 0;
  // The memory may be reused after FlushWindow.
  virtual Status Put(const void* data, int bytes, int to, size_t offset, MpiWin window) = 0;
  // Stores a word as a whole. It may be reused after FlushWindow.
  virtual Status StoreWord(const uint64_t* word, int to, size_t offset, MpiWin window) = 0;
  // Returns when all that was written to `to` is there. May wait for that rank to call MPI, without a limit.
  virtual Status FlushWindow(int to, MpiWin window) = 0;

  // ---- completing requests
  // True when the request is complete; it is null then. `received` may be null.
  virtual StatusOr<bool> Test(MpiRequest* request, Received* received) = 0;
  virtual bool IsNull(const MpiRequest& request) const = 0;
  virtual MpiRequest null_request() const = 0;
};

}  // namespace horocache::net
