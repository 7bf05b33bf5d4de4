// Collectives in two levels: shared memory inside each host, MPI between the hosts' leaders.
//
// Note [Two levels]
// An operation is cut into chunks. In an allreduce, the ranks of a host reduce a chunk to their leader, the leaders
// allreduce it over MPI, and each leader broadcasts the result on its host. While chunk k is between the hosts, chunk
// k + 1 is reduced inside them. The ranks of a host run the local operations in one fixed order, so a leader that waits
// for the network delays the other ranks but never changes the order. Sums are formed host by host, so for floats the
// bits differ from those of a fold in rank order.
// Example: 2 hosts with 4 ranks each allreduce 8 MiB, in 4 chunks of 2 MiB. Ranks 0 and 4 are the leaders. The local
// operations are reduce 0, reduce 1, broadcast 0, reduce 2, broadcast 1, reduce 3, broadcast 2, broadcast 3. After
// reduce 0, rank 0 has the sum of chunk 0 over ranks 0 to 3 and allreduces it with rank 4 while reduce 1 runs. It
// starts broadcast 0 when the sum over both hosts has arrived.
//
// Threads: the driving thread. Ownership: the queue of the mpi backend owns the levels; they outlive the operations.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/backend.h"
#include "data/kernels/fold.h"

namespace horocache::data {

struct MpiQueue;
class MpiTask;

struct TwoLevels {
  // The levels as seen from `rank`.
  TwoLevels(MpiResources&& resources, int rank, const BackendOptions& options, const KernelSet* kernel_set);

  bool leads() const { return cross != nullptr; }
  int host(int rank) const { return host_of[static_cast<size_t>(rank)]; }

  std::unique_ptr<Backend> local;    // among the ranks of this host; the leader is its rank 0
  std::unique_ptr<Backend> cross;    // among the leaders, by host; null on other ranks
  std::vector<int> host_of;          // by rank: the index of its host
  std::vector<int> local_of;         // by rank: its rank on its host
  bool contiguous = true;            // the ranks of each host have consecutive numbers
  bool has_multi_rank_host = false;  // at least one host has several ranks
  control::RankNames local_names, cross_names;

 private:
  void NameRanks(const MpiResources& resources, int own);
};

// Makes `part` the reduction inside a host, or the one between hosts, of the allreduce `whole` of `ranks` ranks. If the
// result is scaled first (ScalesFirst), its addends are scaled inside the hosts.
void ReduceInside(const Collective& whole, int ranks, Collective* part);
void ReduceBetween(const Collective& whole, int ranks, Collective* part);

// allreduce and broadcast without joined ranks.
std::unique_ptr<MpiTask> MakeTwoLevel(MpiQueue* queue, Collective collective);

// Moves the data of an allgather, once all ranks know the rows of all ranks and have memory for the result: each host
// gathers its rows at its leader, the leaders allgather, and each leader broadcasts the result on its host.
class TwoLevelAllgather {
 public:
  // `rows`: of each rank. `result`: memory for the whole result, also on ranks that do not lead.
  TwoLevelAllgather(TwoLevels* levels, int rank, const Collective& collective, const std::vector<int64_t>& rows,
                    std::byte* result);
  // True when it is finished; status() then has the result.
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
  std::vector<int64_t> starts_;  // first row in the result, by rank; then the number of rows
  std::vector<int> here_;        // ranks of this host
  State state_ = State::kGather;
  std::unique_ptr<CollectiveTask> running_;
  VariableOutput output_;
  Status status_;
};

}  // namespace horocache::data
