// A communicator of NCCL, on one device.
//
// Calls of NCCL that wait for other ranks may hang, so they run on threads with a limit: connecting, aborting and
// destroying. They use the device's context and nothing of the caller's.
//
// Note [Ends of a communicator]
// Destroying waits for the other ranks, so it is for a communicator whose ranks all leave in order. In any other case
// it is aborted: what runs on the device ends without its result. Nothing may be called on it after that.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/thread.h"
#include "cuda/device.h"
#include "cuda/nccl.h"
#include "cuda/nccl_memory.h"

namespace horocache::cuda {

class NcclCommunicator {
 public:
  struct Place {
    int rank = 0;
    int ranks = 1;
    std::string name;  // of the communicator, in NCCL's own messages
  };

  // Begins to connect. All ranks do so with the same id. Throws std::system_error if no thread can be made.
  NcclCommunicator(std::shared_ptr<const Nccl> nccl, std::shared_ptr<Device> device, const NcclUniqueId& id,
                   Place place);
  // Destroys it, within kDestroySeconds, or aborts it if it is not connected.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // True once connecting has ended. Until then only StartAbort may be called, besides.
  bool HasConnected() const { return connect_.Returned(); }
  // The outcome of connecting.
  Status connected() const;

  // For the calls that launch collectives; they need the device's context.
  NcclCommHandle handle() const;
  // An error that has happened since a collective was launched, for example because a rank of another host died.
  Status AsyncError() const;

  // ---- a window: memory that all ranks have registered, which NCCL then reaches by quicker ways

  // Frees the memory at the end of the communicator, on a thread of its own.
  void Keep(std::shared_ptr<const NcclMemory> memory);
  // Begins to register the memory that it keeps. All ranks do so, with as many bytes, or none does. Until
  // HasRegistered, only StartAbort may be called, besides. Throws std::system_error if no thread can be made.
  void StartRegistering();
  bool HasRegistered() const { return registering_->Returned(); }
  Status registered() const;

  // Begins to abort. Without effect the second time.
  void StartAbort();
  // Waits until it is aborted or the time is over (steady-clock ns); true if it is. Requires StartAbort.
  bool AbortedBy(int64_t deadline_ns) const;

 private:
  static constexpr double kDestroySeconds = 2;  // and to free a window
  struct Shared;

  void FreeMemory() const;

  const std::shared_ptr<Shared> shared_;      // with the threads, which may outlive this object
  std::unique_ptr<LimitedCall> registering_;  // null before StartRegistering
  std::unique_ptr<LimitedCall> abort_;        // null before StartAbort, and if there is nothing to abort
  bool aborts_ = false;
  bool cannot_abort_ = false;
  const LimitedCall connect_;
};

}  // namespace horocache::cuda
