// Connects the ranks of a process set by NCCL, once.
//
// Note [Connecting by NCCL]
// The ranks use a backend for memory of the host, on which they are connected already:
//
//   1. Rank 0 of the set makes NCCL's unique id and broadcasts it.
//   2. Every rank connects, on a thread of its own, with a limit.
//   3. The ranks reduce "who failed" to the lowest rank that did. If there is one, it broadcasts why.
//
// So all ranks learn the same outcome, and go on together: with NCCL, or without it.
//
// Threads: the driving thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread.h"
#include "cuda/device.h"
#include "cuda/nccl.h"
#include "cuda/nccl_communicator.h"
#include "data/backend.h"

namespace horocache::data {

class NcclConnector {
 public:
  using Place = cuda::NcclCommunicator::Place;

  // Each call of NCCL may take `limit_ns`. `host` and `names` outlive the connector; `names` may be null.
  NcclConnector(Backend* host, std::shared_ptr<const cuda::Nccl> nccl, std::shared_ptr<cuda::Device> device,
                Place place, int64_t limit_ns, const control::RankNames* names);

  // Aborts what has connected, unless it was taken: the other ranks may not know of it.
  ~NcclConnector();
  NcclConnector(const NcclConnector&) = delete;
  NcclConnector& operator=(const NcclConnector&) = delete;

  // Does a bounded amount of work; true once it has ended. Not called again after that.
  bool Step();
  bool progressed() const { return progressed_; }
  void AddWaitingFor(std::vector<int>* ranks) const;
  std::string Details() const;

  // The outcome, equal on all ranks unless the backend for the host failed.
  const Status& outcome() const { return outcome_; }
  // The collectives of the host's backend, which its counters count, too.
  const DataCounters& counters() const { return counters_; }
  // The communicator; null if the outcome is an error.
  std::unique_ptr<cuda::NcclCommunicator> Take() { return std::move(communicator_); }

 private:
  static constexpr size_t kReasonBytes = 600;
  struct Reason {
    char text[kReasonBytes] = {};  // empty: there is none
  };
  struct Invitation {
    cuda::NcclUniqueId id = {};
    Reason why_not;
  };

  void Next(bool (NcclConnector::*step)());
  bool MakeId();
  bool SendId();
  bool Connect();
  bool Compare();
  bool Tell();
  // Runs a collective of the host's backend on `count` elements in place; true once it is done.
  StatusOr<bool> Run(wire::Op op, DType dtype, int root, void* memory, int64_t count);
  bool End(Status outcome);
  bool EndWith(int rank, const Reason& reason);

  Backend& host_;
  const std::shared_ptr<const cuda::Nccl> nccl_;
  const std::shared_ptr<cuda::Device> device_;
  const Place place_;
  const int64_t limit_ns_;
  const control::RankNames* const names_;

  bool (NcclConnector::*step_)() = &NcclConnector::MakeId;
  bool progressed_ = false;
  int64_t deadline_ns_ = 0;  // of the step; 0: it has not begun
  std::unique_ptr<CollectiveTask> task_;
  std::shared_ptr<Invitation> made_;  // by rank 0, shared with the thread
  std::unique_ptr<LimitedCall> making_;
  Invitation invitation_;
  std::unique_ptr<cuda::NcclCommunicator> communicator_;
  Status own_;  // of this rank
  // The lowest rank that failed; if none did, the number of ranks plus the lowest one that was late, because a rank
  // that fails makes others late; else twice the number of ranks.
  int32_t failed_ = 0;
  Reason reason_;
  Status outcome_;
  DataCounters counters_;
};

}  // namespace horocache::data
