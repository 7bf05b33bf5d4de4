// The state that the operations of the nccl backend share: the backend for memory of the host, the connection of the
// ranks by NCCL, and the stream on which they run.
//
// Note [The end of work on a device]
// The operations of a link run in a stream of its own, one after the other. When the set ends before they have, or one
// of them fails, the link is broken: the communicator is aborted, which ends what NCCL runs, and no operation counts as
// finished before the stream has no work any more, so that nothing writes into tensors that the caller has back. A
// device that does not stop within kPatienceSeconds is given up: its communicator and stream are never freed.
//
// Threads: the driving thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/block_pool.h"
#include "base/status.h"
#include "base/thread.h"
#include "cuda/device.h"
#include "cuda/nccl.h"
#include "cuda/nccl_communicator.h"
#include "data/backend.h"
#include "data/backends/nccl/connector.h"
#include "data/backends/nccl/packing_tables.h"

namespace horocache::data {

// Has the memory of the operations, too: `new (link) Some(link, ...)`.
class NcclLink : public BlockPool {
 public:
  NcclLink(std::unique_ptr<Backend> host, int rank, int ranks, const BackendOptions& options);
  ~NcclLink();

  Backend& host() const { return *host_; }
  // Starts a part of an operation by NCCL on the host. It does not count as an operation.
  std::unique_ptr<CollectiveTask> StartOnHost(Collective part);
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // ---- connecting
  // True if operations go by NCCL, or may, because the ranks have not tried to connect yet.
  bool by_nccl() const { return refused_.ok(); }
  // Does a bounded part of connecting the ranks; true once that has ended. `device` has this rank's tensors.
  bool Connect(int device, const control::RankNames* names);
  const NcclConnector* connector() const { return connector_.get(); }
  // Why the ranks do not use NCCL, equal on all of them; ok: they do.
  const Status& refused() const { return refused_; }
  // True if operations that NCCL was to run go by way of the host where it is refused.
  bool falls_back() const { return !options_.nccl.required; }

  // ---- of a connected link
  const cuda::Nccl& nccl() const { return *options_.nccl.library; }
  const std::shared_ptr<cuda::Device>& device() const { return device_; }
  cuda::Stream& stream() const { return *stream_; }
  cuda::NcclCommHandle comm() const { return communicator_->handle(); }
  // The kernels that pack tensors; null: the device of some rank has none.
  const cuda::PackingKernels* packing() const { return packing_; }
  PackingTables& tables() { return tables_; }
  // Does a bounded part of connecting each rank with the root for messages, or, if root is -1, all pairs; true once
  // that has ended. NCCL would connect a pair in the call that launches its first message, and wait there for the other
  // rank. After an error the link must be broken.
  StatusOr<bool> ConnectMessages(int root);
  bool connects_messages() const { return connecting_messages_ != nullptr; }
  // Memory on the device for the operation that is queued now: at least `bytes`, up to the next call. Operations run
  // one after the other, so all use the same. Requires a Scope.
  StatusOr<std::byte*> Scratch(int64_t bytes);
  // True if the array of the packed tensors is in the window. All ranks must then use it, because NCCL takes other ways
  // for windows.
  bool InWindow(int64_t bytes) const { return window_ != nullptr && bytes <= window_->bytes(); }
  std::byte* window() const { return window_->data(); }
  // An error of an operation under way, once it has lasted for kGraceNs: by then this rank knows by other ways whether
  // a rank has died, and reports that instead.
  Status AsyncError();

  // ---- the end of work
  const Status& broken() const { return broken_; }
  // Breaks the link for good; the first reason stays.
  void Break(const Status& why);
  // True once the device has no work of a broken link any more, or was given up.
  bool Quiet();
  void AwaitQuiet();
  // Not ok, naming the device, if it was given up.
  const Status& given_up() const { return given_up_; }
  bool gave_up() const { return gave_up_; }  // also if there was no memory for the text of given_up

  DataCounters counters;                                    // of the operations by NCCL
  const DataCounters& on_host() const { return on_host_; }  // what the host's backend has done for NCCL

 private:
  static constexpr double kPatienceSeconds = 2;
  static constexpr int64_t kGraceNs = 1'000'000'000;

  Status MakeStream(int device);
  Status StartFirstMessages(int root);

  const std::unique_ptr<Backend> host_;
  const int rank_, ranks_;
  const BackendOptions options_;
  std::shared_ptr<cuda::Device> device_;  // null before the first operation, here and below
  std::unique_ptr<cuda::Stream> stream_;
  std::unique_ptr<NcclConnector> connector_;  // while the ranks connect
  std::unique_ptr<cuda::NcclCommunicator> communicator_;
  // Messages that connect the pairs, on a thread of their own.
  struct FirstMessages {
    Status status;
  };
  std::shared_ptr<FirstMessages> first_messages_;
  std::unique_ptr<LimitedCall> connecting_messages_;
  int64_t messages_deadline_ns_ = 0;
  std::vector<bool> messages_connected_;  // by root + 1; the first one: all pairs
  const cuda::PackingKernels* packing_ = nullptr;
  const cuda::NcclMemory* window_ = nullptr;  // of the communicator
  PackingTables tables_;
  std::shared_ptr<cuda::DeviceBuffer> scratch_;
  int64_t scratch_bytes_ = 0;
  bool connected_ = false;
  Status refused_;
  Status broken_, given_up_;
  bool gave_up_ = false;
  DataCounters on_host_;
  int64_t quiet_deadline_ns_ = 0;  // 0: not broken
  int64_t error_since_ns_ = 0;     // 0: none
};

}  // namespace horocache::data
