// Collectives in two levels: shared memory inside each host, MPI between the hosts' leaders.
//
// Note [Two levels]
// An operation is cut into chunks. For an allreduce, the ranks of a host reduce a chunk to their leader, the leaders
// reduce it over MPI, and each broadcasts the result on its host. While chunk k is between hosts, chunk k + 1 is
// reduced inside them. The ranks of a host run their chunks' operations in one fixed order (reduce 0, reduce 1,
// broadcast 0, reduce 2, broadcast 1, ...), so what only the leader waits for delays the others and never confuses
// them. Sums are formed host by host: for floats the bits differ from those of a fold in rank order.
//
// Role: lanes. Ownership: the queue of the mpi backend owns the levels; they outlive the operations.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/backend.h"
#include "data/kernels/fold.h"

namespace horocache::data {

struct MpiQueue;
class MpiOperation;

struct TwoLevels {
  // Those of `rank`'s host.
  TwoLevels(MpiMeans&& means, int rank, const BackendOptions& options, const KernelSet* kernel_set);

  bool leads() const { return cross != nullptr; }
  int host(int rank) const { return host_of[static_cast<size_t>(rank)]; }

  std::unique_ptr<Backend> local;  // among the ranks of this host; the leader is its rank 0
  std::unique_ptr<Backend> cross;  // among the leaders, by host; null on other ranks
  std::vector<int> host_of;        // by rank
  std::vector<int> local_of;       // by rank: its number on its host
  bool contiguous = true;          // the ranks of each host follow each other
  bool worthwhile = false;         // some host has several ranks
  control::RankNames local_names, cross_names;

 private:
  void NameRanks(const MpiMeans& means, int own);
};

// allreduce and broadcast without joined ranks.
std::unique_ptr<MpiOperation> MakeTwoLevel(MpiQueue* queue, Collective collective);

// The data of an allgather, once all ranks know everybody's rows and have memory for the result.
class TwoLevelAllgather {
 public:
  // `rows` of each rank, in a result at `result` of the whole; `input` is this rank's.
  TwoLevelAllgather(TwoLevels* levels, int rank, const Collective& collective, const std::vector<int64_t>& rows,
                    std::byte* result);
  // True when it is finished; then status().
  bool Test();
  const Status& status() const { return status_; }

 private:
  enum class State { kGather, kExchange, kBroadcast, kDone };

  void Start(Backend* backend, Collective collective);
  void StartGather();
  void StartExchange();
  void StartBroadcast();

  TwoLevels& levels_;
  const int rank_;
  const Segment input_;
  const DType dtype_;
  const int64_t row_bytes_;
  const int64_t row_elements_;
  std::byte* const result_;
  std::vector<int64_t> starts_;  // row of the result, by rank; and the end
  std::vector<int> here_;        // ranks of this host
  State state_ = State::kGather;
  std::unique_ptr<Operation> running_;
  VariableOutput output_;
  Status status_;
};

}  // namespace horocache::data
