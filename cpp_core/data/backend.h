// The one interface of the data plane: a backend runs collectives on the tensors of one rank, together with its peers
// on the other ranks.
//
// All ranks of a lane start the same collectives in the same order; a backend may rely on it. Nothing here blocks:
// Start enqueues, Test moves the work on by a bounded amount (about 100 us at most) and tells whether it is finished.
//
// Role: lanes (held by one thread at a time).
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
#include "net/mpi/communicator.h"
#include "observe/trace_text.h"
#include "wire/message.h"

namespace horocache::data {

// A result of which the allocation may well fail: the ranks ask each other before they go on.
inline constexpr int64_t kConfirmedBytes = 1 << 20;

// `count` elements; input and output may be the same memory. output is null where this rank receives nothing.
struct Segment {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int64_t count = 0;
};

// Tells when the inputs of a collective are ready to be read; null on the CPU, where they always are.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool Ready() = 0;
};

// A result whose size is known only after the ranks met (allgather, alltoall, gather, scatter, uneven reducescatter).
struct VariableOutput {
  std::function<StatusOr<std::byte*>(int64_t bytes)> allocate;  // called once
  std::vector<int64_t> rows;                                    // filled: rows received from each rank
};

struct Collective {
  wire::Op op = wire::Op::kAllreduce;
  wire::ReduceOp reduce_op = wire::ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  wire::DeviceClass device_class = wire::DeviceClass::kCpu;
  double prescale = 1.0;   // each input is multiplied by it before the fold
  double postscale = 1.0;  // the result is multiplied by it; kAverage divides by the number of ranks besides
  int root = -1;
  uint8_t algorithm = 0;
  uint64_t sequence = 0;

  // allreduce, broadcast, reduce: counts are equal on all ranks. allgather, alltoall, reducescatter, gather, scatter:
  // one segment.
  std::vector<Segment> segments;
  // For the operations that work on rows: elements in a row.
  int64_t row_elements = 1;
  // Rows of the one segment; -1: count / row_elements. To be given where rows may have no elements.
  int64_t rows = -1;
  // alltoall, scatter at the root: rows for each rank, may differ between ranks. reducescatter: rows for each rank,
  // equal on all ranks (empty: as even as possible, the first ranks get one more).
  std::vector<int64_t> splits;
  std::vector<int64_t> send_starts;     // alltoall, scatter at the root: row of the tensor at which the part for each
                                        // rank begins, parts may overlap; empty: one after the other
  std::vector<int64_t> receive_rows;    // allgather, alltoall, gather at the root: rows expected from each rank; empty:
                                        // whatever comes
  std::vector<int64_t> receive_starts;  // there: row of the result at which each rank's part begins, what no part
                                        // covers is zero; empty: one after the other
  VariableOutput* output = nullptr;
  // Ranks without data of their own (they have joined): left out of folds, no rows from them, and what is sent to them
  // is dropped. Equal on all ranks.
  std::vector<int32_t> joined;
  // What an average divides by, where that is not the number of ranks; 0: it is. Equal on all ranks.
  int divisor_ranks = 0;
  int Divisor(int ranks) const { return divisor_ranks > 0 ? divisor_ranks : ranks; }
  // How ranks are called in messages; null: by their numbers here.
  const control::RankNames* names = nullptr;
  std::string Rank(int64_t rank) const {
    return names == nullptr ? "rank " + std::to_string(rank) : names->Text(static_cast<int>(rank));
  }
  // Null, or not ready before this fires.
  Event* ready = nullptr;
};

class Operation {
 public:
  virtual ~Operation() = default;
  // Moves on; true when finished, well or not. Not called again afterwards.
  virtual bool Test() = 0;
  // After Test returned true.
  virtual Status status() const = 0;
  // Bounded progress was made in the last Test: calling again at once is worth while.
  virtual bool progressed() const = 0;
  // Whether nobody is woken when the operation can go on, so that Test has to be called now and then.
  virtual bool must_poll() const { return false; }
  // What it does now, for the timeline.
  virtual observe::Phase phase() const { return observe::Phase::kTransfer; }
  // For stall reports: ranks this operation waits for now; none if for none, or if that cannot be known.
  virtual void AddWaitingFor(std::vector<int>* ranks) const { static_cast<void>(ranks); }
  std::vector<int> WaitingFor() const {
    std::vector<int> ranks;
    AddWaitingFor(&ranks);
    return ranks;
  }
  // The same in words, for those that have more to say: lines of text, each behind a line feed.
  virtual std::string Details() const { return {}; }
  // Once it is finished: the list that it was started with, whose memory serves the next one; may be empty.
  virtual std::vector<Segment> TakeSegments() { return {}; }
};

struct DataCounters {
  uint64_t operations = 0;
  uint64_t payload_bytes = 0;  // bytes of the tensors
  uint64_t bytes_copied = 0;   // bytes that were moved in memory for them: in and out of buffers
  uint64_t bytes_folded = 0;   // bytes of results that were stored, each store counted once
  uint64_t programs = 0;       // operations that ran as compiled programs
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const control::BackendTraits& traits() const = 0;
  // kUnsupported, saying why and what could run it, before anything is sent.
  virtual Status Supports(const Collective& collective) const = 0;
  // Everything `collective` points to stays valid until the operation is finished.
  virtual std::unique_ptr<Operation> Start(Collective collective) = 0;
  virtual const DataCounters& counters() const = 0;
  // Not ok once this rank is out of step with the others, so that nothing can run here any more: the job is to end.
  virtual Status broken() const { return Status::Ok(); }
};

// Memory of one process set's lane on one host, laid out by net/arena.h: one data area per rank, written by that rank
// only, read by all.
struct SharedArea {
  int rank = 0;
  int size = 1;
  std::vector<std::byte*> data;  // per rank; 64-byte aligned, zero at the start of the epoch
  size_t data_bytes = 0;         // of each
  // Per rank: memory that its tensors may lie in, mapped here; empty if there is none.
  std::vector<std::span<std::byte>> regions = {};
  std::function<void(int rank)> ring;  // wakes the thread that drives `rank`'s lanes, if it sleeps; cheap if not
};

// A part of each rank's data area.
SharedArea PartOf(const SharedArea& area, size_t begin, size_t bytes);

struct BackendOptions {
  int64_t tile_bytes = 256 << 10;
  int64_t oneshot_max_bytes = -1;  // < 0: see Note [The table of algorithms] in shm_algorithms.h
  std::string kernels = "auto";
  int64_t fakedevice_delay_ns = -1;                // below 0: there is no fake device
  bool deterministic = false;                      // reductions fold in rank order on every backend
  int64_t mpi_max_count = (int64_t{1} << 31) - 1;  // elements of one MPI call
};

// What a process set's ranks have in common.
struct BackendMeans {
  bool memory = true;  // they are on one host
  bool mpi = false;
};

// What the mpi backend works with; nothing if there is none.
struct MpiMeans {
  net::Communicator all;      // of the set's ranks
  net::Communicator leaders;  // of the lowest rank of each host, by host; empty on other ranks and on one host
  SharedArea local;           // of the ranks of this host, if there are several hosts
  std::vector<int> host_of;   // by rank
  std::vector<int> ranks;     // by rank: its number in the job, for messages
  uint32_t process_set = 0;
};

// Creates every backend that can run, in a fixed order: shm (if area.data is filled), mpi (if `mpi.all` is not empty,
// and then connects area.size ranks), loopback (area.size == 1), fakedevice (if asked for). data/registry.cc holds the
// one list.
StatusOr<std::vector<std::unique_ptr<Backend>>> MakeBackends(const SharedArea& area, const BackendOptions& options,
                                                             MpiMeans mpi = {});
// The traits of those backends, in the same order, for so many ranks.
std::vector<control::BackendTraits> TraitsOf(int ranks, const BackendOptions& options, BackendMeans means = {});

}  // namespace horocache::data
