// Connects the ranks of a process set by NCCL, once.
//
// Note [Connecting by NCCL]
// The ranks use a backend for memory of the host, on which they are connected already:
//
//   1. Rank 0 of the set makes NCCL's unique id and broadcasts it.
//   2. Every rank connects, on a thread of its own, with a limit.
//   3. A rank that has connected compiles the packing kernels, and allocates memory for a window if the user wants one,
//      on threads of their own, with a limit.
//   4. The ranks agree on the lowest rank that failed, and on whether all of them have the kernels and the memory. If a
//      rank failed, the lowest one broadcasts why.
//   5. If all ranks have the memory, they register it as a window, as in 2, and compare again, as in 4.
//
// So all ranks learn the same outcome, and go on together: with NCCL, or without it.
//
// Threads: the driving thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread.h"
#include "cuda/device.h"
#include "cuda/nccl.h"
#include "cuda/nccl_communicator.h"
#include "cuda/nccl_memory.h"
#include "data/backend.h"

namespace horocache::data {

class NcclConnector {
 public:
  using Place = cuda::NcclCommunicator::Place;

  // Starts a collective of the backend for memory of the host.
  using StartOnHost = std::function<std::unique_ptr<CollectiveTask>(Collective part)>;

  // Each call of NCCL may take `limit_ns`. `window_bytes`: of the window; 0: none. `names` outlives the connector, and
  // may be null.
  NcclConnector(StartOnHost start, std::shared_ptr<const cuda::Nccl> nccl, std::shared_ptr<cuda::Device> device,
                Place place, int64_t limit_ns, int64_t window_bytes, const control::RankNames* names);

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
  // The device's packing kernels; null if a rank has none.
  const cuda::PackingKernels* packing() const { return packing_; }
  // Why this rank has none; ok if it has.
  const Status& why_unpacked() const { return why_unpacked_; }
  // Memory that is a window of all ranks; null if a rank has none.
  const cuda::NcclMemory* window() const { return window_; }
  // Why this rank has no window, which was wanted; ok if it has.
  const Status& why_no_window() const { return why_no_window_; }
  // The communicator, which keeps the window; null if the outcome is an error.
  std::unique_ptr<cuda::NcclCommunicator> Take() { return std::move(communicator_); }

 private:
  static constexpr size_t kReasonBytes = 600;
  static constexpr int64_t kMostPrepareNs = 10'000'000'000;
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
  bool RunLimited(const char* name, const std::function<void()>& call, Status* status);
  bool Compile();
  bool Allocate();
  bool Compare();
  bool Register();
  bool Tell();
  // This rank's part in the lowest rank that failed, see Votes.
  int32_t VoteOf(const Status& own, bool late) const;
  // Runs a collective of the host's backend on `count` elements in place; true once it is done.
  StatusOr<bool> Run(wire::Op op, DType dtype, int root, void* memory, int64_t count);
  bool End(Status outcome);
  bool EndWith(int rank, const Reason& reason);

  const StartOnHost start_;
  const std::shared_ptr<const cuda::Nccl> nccl_;
  const std::shared_ptr<cuda::Device> device_;
  const Place place_;
  const int64_t limit_ns_, window_bytes_;
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
  // The results of threads.
  struct Compiled {
    StatusOr<const cuda::PackingKernels*> kernels = NoMemoryError();  // until it has ended well
  };
  struct Allocated {
    StatusOr<std::shared_ptr<const cuda::NcclMemory>> memory = NoMemoryError();  // likewise
  };
  std::shared_ptr<Compiled> compiled_;
  std::shared_ptr<Allocated> allocated_;
  std::unique_ptr<LimitedCall> preparing_;
  const cuda::PackingKernels* packing_ = nullptr;
  Status why_unpacked_;
  const cuda::NcclMemory* window_ = nullptr;  // the communicator keeps it; in steps 3 and 4 the memory for it
  bool registers_ = false;                    // it has come to step 5
  Status why_no_window_;
  // Reduced to the minimum over the ranks.
  struct Votes {
    // The lowest rank that failed; if none did, the number of ranks plus the lowest one that was late, because a rank
    // that fails makes others late; else twice the number of ranks.
    int32_t failed = 0;
    int32_t has_kernels = 0;
    int32_t has_window = 0;               // in step 4 the memory for it
    int32_t cannot_register = INT32_MAX;  // the lowest rank whose registration has failed
  };
  Votes votes_;
  Reason reason_;
  Status outcome_;
};

}  // namespace horocache::data
