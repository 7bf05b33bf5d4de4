// The one interface of the data plane: a backend runs collectives on the tensors of one rank, together with its peers
// on the other ranks.
//
// All ranks of a lane start the same collectives in the same order; a backend may rely on it. Nothing here blocks:
// Start enqueues, Test does a bounded amount of work (about 100 us at most) and returns whether the collective is
// finished.
//
// Threads: the driving thread, which holds the progress lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "control/rank_set.h"
#include "control/selector.h"
#include "cuda/device.h"
#include "cuda/nccl.h"
#include "net/mpi/communicator.h"
#include "observe/trace_text.h"
#include "wire/message.h"

namespace horocache::data {

// Size of a result in bytes from which the ranks confirm to each other that they have the memory, before they move
// data: such an allocation is likely to fail when memory runs out.
inline constexpr int64_t kConfirmedBytes = 1 << 20;

// `count` elements; input and output may be the same memory. output is null if this rank receives nothing.
struct Segment {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int64_t count = 0;
};

// Signals that the inputs of a collective are ready to be read. CPU tensors are always ready and have none.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool Ready() = 0;
  // Makes `stream` wait for the inputs on the device, and sets *waits, unless they are ready. Requires a Scope of the
  // stream's device. kUnsupported if no stream of that device computes them.
  virtual Status HoldBack(cuda::Stream* stream, bool* waits);
};

// A result whose size is known only after the ranks have exchanged their row counts (allgather, alltoall, gather,
// scatter, uneven reducescatter).
struct VariableOutput {
  std::function<StatusOr<std::byte*>(int64_t bytes)> allocate;  // called once, unless a device has the result
  bool keeps_gaps = false;    // elements that no part covers keep their values, and are not set to zero
  std::vector<int64_t> rows;  // filled by the backend: rows received from each rank
  std::shared_ptr<cuda::DeviceBuffer> on_device;  // the result, if a device has it
};

struct Collective {
  wire::Op op = wire::Op::kAllreduce;
  wire::ReduceOp reduce_op = wire::ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  wire::DeviceClass device_class = wire::DeviceClass::kCpu;
  int device = 0;          // of CUDA tensors: the number of this rank's device
  double prescale = 1.0;   // each input is multiplied by it before the fold
  double postscale = 1.0;  // the result is multiplied by it; kAverage also divides by the number of ranks
  int root = -1;
  uint8_t algorithm = 0;
  uint64_t sequence = 0;

  // allreduce, broadcast, reduce: counts are equal on all ranks. allgather, alltoall, reducescatter, gather, scatter:
  // one segment.
  std::vector<Segment> segments;
  // Elements in a row, for the operations that work on rows.
  int64_t row_elements = 1;
  // Rows of the one segment; -1: count / row_elements. Required if rows may have no elements.
  int64_t rows = -1;
  // Of an operation on rows without elements that tells only how many there are: the elements of a row elsewhere, which
  // limit their number.
  int64_t elements_elsewhere = 0;
  // alltoall, scatter at the root: rows for each rank; may differ between ranks. reducescatter: rows for each rank,
  // equal on all ranks (empty: as even as possible, the first ranks get one more).
  std::vector<int64_t> splits;
  std::vector<int64_t> send_starts;     // alltoall, scatter at the root: row of the tensor at which the part for each
                                        // rank begins; parts may overlap; empty: one after the other
  std::vector<int64_t> receive_rows;    // allgather, alltoall, gather at the root: rows expected from each rank; empty:
                                        // any number
  std::vector<int64_t> receive_starts;  // allgather, alltoall, gather at the root: row of the result at which each
                                        // rank's part begins; uncovered rows are zero; empty: one after the other
  VariableOutput* output = nullptr;
  // The result, of which the gaps between the parts are to be set to zero; null: they keep their values.
  std::byte* ZeroedIn(std::byte* result) const { return output != nullptr && output->keeps_gaps ? nullptr : result; }
  // Ranks that have joined and so have no data: folds leave them out, they send no rows, and rows for them are dropped.
  // Equal on all ranks.
  std::vector<int32_t> joined;
  // The divisor of an average; 0: the number of ranks. Equal on all ranks.
  int divisor_ranks = 0;
  int Divisor(int ranks) const { return divisor_ranks > 0 ? divisor_ranks : ranks; }
  // The names of the ranks in messages; null: their numbers in this collective.
  const control::RankNames* names = nullptr;
  std::string Rank(int64_t rank) const {
    return names == nullptr ? "rank " + std::to_string(rank) : names->Text(static_cast<int>(rank));
  }
  // The inputs are ready when it fires; null: they are ready now.
  Event* ready = nullptr;
};

class CollectiveTask {
 public:
  virtual ~CollectiveTask() = default;
  // Does a bounded amount of work; true when the operation is finished, successfully or not. Not called again after
  // that.
  virtual bool Test() = 0;
  // True once a device has all of the operation in a queue of its own, so that the next operation may start behind it.
  // Test goes on until the device has done it.
  virtual bool launched() const { return false; }
  // About how many entries of the device's queue a launched operation takes.
  virtual int queued() const { return 1; }
  // Of a launched operation: happens when the device has done it.
  virtual std::shared_ptr<const cuda::Event> on_device() const { return nullptr; }
  // The result; valid after Test has returned true.
  virtual Status status() const = 0;
  // True if the last Test made progress, so that calling it again at once is worth while.
  virtual bool progressed() const = 0;
  // True if the backend wakes no thread when the operation can continue, so that Test must be called periodically.
  virtual bool must_poll() const { return false; }
  // The current phase, for the timeline.
  virtual observe::Phase phase() const { return observe::Phase::kTransfer; }
  // For the report on a collective that runs too long (SetEngine::Overdue): adds the ranks whose data this
  // operation lacks at the moment. A backend that does not know them adds none.
  virtual void AddWaitingFor(std::vector<int>* ranks) const { static_cast<void>(ranks); }
  std::vector<int> WaitingFor() const {
    std::vector<int> ranks;
    AddWaitingFor(&ranks);
    return ranks;
  }
  // For the same report: further lines of text on the current state, each preceded by a line feed; may be empty.
  virtual std::string Details() const { return {}; }
  // After the operation is finished: returns its list of segments, so that the next operation can reuse the memory; may
  // be empty.
  virtual std::vector<Segment> TakeSegments() { return {}; }
};

struct DataCounters {
  uint64_t operations = 0;
  uint64_t payload_bytes = 0;  // bytes of the tensors
  uint64_t bytes_copied = 0;   // bytes copied in memory, into buffers and out of them
  uint64_t bytes_folded = 0;   // bytes of results that were stored; each store counts
  uint64_t programs = 0;       // operations that ran as compiled programs
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const control::BackendTraits& traits() const = 0;
  // Checked before anything is sent. kUnsupported: the message says why and what could run the collective.
  virtual Status Supports(const Collective& collective) const = 0;
  // Everything that `collective` points to must stay valid until the operation is finished.
  virtual std::unique_ptr<CollectiveTask> Start(Collective collective) = 0;
  virtual const DataCounters& counters() const = 0;
  // Not ok once this rank is out of step with the others: the backend can run nothing more, and the job must end.
  virtual Status broken() const { return Status::Ok(); }
  // For a set that ends before its operations have: begins to stop what devices run for the backend. Nothing is
  // started after it.
  virtual void Abandon(const Status& why) { static_cast<void>(why); }
  // After Abandon: returns once no device writes into memory of a caller any more. An error, naming the device, if it
  // did not stop in time and was given up.
  virtual Status AwaitDevices() { return Status::Ok(); }
};

// Memory of one process set's lane on one host, laid out by net/shm/arena.h: one data area per rank, which only that
// rank writes and all ranks read.
struct SharedArea {
  int rank = 0;
  int size = 1;
  std::vector<std::byte*> data;  // per rank; 64-byte aligned, zero at the start of the epoch
  size_t data_bytes = 0;         // size of each data area
  // Per rank: its region (memory for tensors), as mapped in this process; empty in a job without regions.
  std::vector<std::span<std::byte>> regions = {};
  std::function<void(int rank)> ring;  // wakes the thread that drives `rank`'s lanes; cheap if it is awake
};

// The bytes [begin, begin + bytes) of each rank's data area.
SharedArea PartOf(const SharedArea& area, size_t begin, size_t bytes);

// The use of NCCL by the backend `nccl`.
struct NcclOptions {
  std::shared_ptr<const cuda::Nccl> library;  // null: the set has no backend `nccl`
  bool required = false;     // where the ranks cannot be connected, operations fail; otherwise the host runs them
  int64_t timeout_ns = 0;    // for connecting
  int64_t window_bytes = 0;  // of the window for packed tensors; 0: none
  std::string name;          // of the process set, in messages of NCCL
  std::function<void(const std::string& text)> warn;
};

struct BackendOptions {
  int64_t tile_bytes = 256 << 10;
  int64_t oneshot_max_bytes = -1;  // < 0: see Note [Choice of the shm algorithm] in algorithms.h
  std::string kernels = "auto";
  bool deterministic = false;                      // reductions fold in rank order on every backend
  int64_t mpi_max_count = (int64_t{1} << 31) - 1;  // largest number of elements in one MPI call
  // For the backends' CUDA tensors; null: they have CPU tensors alone.
  std::shared_ptr<cuda::Devices> devices = nullptr;
  int64_t staging_tile_bytes = cuda::PinnedMemory::kBytes;  // of a CUDA tensor that is on the host at once; not more
  NcclOptions nccl;
};

// The transports that connect all ranks of a process set.
struct Transports {
  bool shm = true;  // shared memory: all ranks are on one host
  bool mpi = false;
  bool nccl = false;
};

// The resources of the mpi backend; `all` is empty in a job without MPI.
struct MpiResources {
  net::Communicator all;      // of the set's ranks
  net::Communicator leaders;  // of the lowest rank of each host, by host; empty on other ranks and on one host
  SharedArea local;           // of the ranks of this host, if there are several hosts
  std::vector<int> host_of;   // by rank: the index of its host
  std::vector<int> ranks;     // by rank: its number in the job, for messages
  uint32_t process_set = 0;
};

// The means of the nccl backend for operations that go by way of the host, and to connect. They are its own, because
// the operations of two lanes have no order.
struct HostResources {
  SharedArea area;
  MpiResources mpi;
  MpiResources levels;  // for operations in two levels, without `all`; empty on one host and without MPI
};

// Creates every backend that can run, in a fixed order: nccl (if there is the library; `for_nccl` is for it), loopback
// (if area.size is 1), shm (if area.data is filled), mpi (if `mpi.all` is not empty; it connects area.size ranks).
// data/registry.cc has the list.
StatusOr<std::vector<std::unique_ptr<Backend>>> MakeBackends(const SharedArea& area, const BackendOptions& options,
                                                             MpiResources mpi = {}, HostResources for_nccl = {});
// The traits of the backends that MakeBackends creates for `ranks` ranks, in the same order.
std::vector<control::BackendTraits> BackendTraitsFor(int ranks, Transports transports = {});

}  // namespace horocache::data
