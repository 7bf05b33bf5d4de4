// allreduce of CUDA tensors in two levels: NCCL inside each host, MPI between the hosts.
//
// The ranks of a host reduce to their leader by NCCL, the leaders allreduce the sums over MPI, by way of the host's
// memory, and each leader broadcasts the result on its host by NCCL. It is for networks that MPI knows and NCCL does
// not. Sums are formed host by host.
//
// The two calls of NCCL are in one stream, so that a rank that does not lead queues both at once.
//
// Threads: the driving thread.
#pragma once

#include <memory>
#include <vector>

#include "data/backend.h"
#include "data/backends/mpi/two_level.h"

namespace horocache::data {

class NcclLevels {
 public:
  // `resources`: of the levels; `rank`: of this process. The options are those of the whole backend.
  NcclLevels(MpiResources&& resources, int rank, const BackendOptions& options, const KernelSet* kernels);

  // kUnsupported if the bits of an allreduce would depend on the hosts in a deterministic job.
  Status Supports(const Collective& collective) const;
  // An allreduce. Requires Supports, and that no rank has joined.
  std::unique_ptr<CollectiveTask> Start(Collective collective);
  // Adds what the levels have done.
  void AddTo(DataCounters* counters) const;
  Status broken() const;
  void Abandon(const Status& why) { inside_->Abandon(why); }
  Status AwaitDevices() { return inside_->AwaitDevices(); }

 private:
  friend class NcclTwoLevel;
  bool leads() const { return between_ != nullptr; }
  int ranks() const { return static_cast<int>(hosts_.host_of.size()); }

  const bool deterministic_;
  TwoLevels hosts_;                   // the host of each rank; the backends below own its backends
  std::unique_ptr<Backend> inside_;   // among the ranks of this host; the leader is its rank 0
  std::unique_ptr<Backend> between_;  // among the leaders, by host; null on other ranks
  std::vector<int> here_, leaders_;   // ranks of the set: those of this host, and the leaders
  DataCounters counters_;
  Status broken_;  // an operation has failed here
};

}  // namespace horocache::data
