// A submitted request and all its state, until the caller consumes the handle.
//
// Records are pooled. A reused record keeps the capacity of its strings and vectors, so that steady state allocates
// nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "control/response_cache.h"
#include "cuda/device.h"
#include "cuda/stream_event.h"
#include "net/shm/shared_heap.h"
#include "wire/message.h"

namespace horocache::runtime {

// Memory of one tensor, as the caller passed it. `output` is null if the core allocates the result.
struct TensorArgument {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int64_t count = 0;         // elements of the input
  int64_t rows = 0;          // size of the input's first dimension; 1 for a scalar
  int64_t output_count = 0;  // elements of the output
};

// The row counts and positions that this rank gives for its tensor and its result; see data::Collective.
struct RowLists {
  std::vector<int64_t> splits, send_starts, receive_rows, receive_starts;
};

struct FreeDeleter {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using OwnedBytes = std::unique_ptr<std::byte, FreeDeleter>;

// A result that the core allocated because its size depends on the other ranks.
struct Result {
  OwnedBytes bytes;
  std::shared_ptr<cuda::DeviceBuffer> on_device;  // has the elements; null: `bytes` has
  int64_t size_bytes = 0;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::vector<int64_t> rows;  // number of rows received from each rank
  int divisor_ranks = 0;      // the divisor of an average
};

// State of a record that carries successive groups of one name: which parts of the previous submission still hold. The
// binding that fills the record sets it; see Note [Repeated groups] in operation_table.h.
struct GroupTemplate {
  int* home = nullptr;        // the table's entry for the group's name; null for other records
  bool filled = false;        // true if the record holds an earlier submission; the binding clears it before it writes
  bool same_request = false;  // true if the request equals that of the earlier submission
  bool same_memory = false;   // true if the tensors also are where they were then
  bool numbers_members = true;  // true if the members' names are made from the group's name
  uint32_t process_set = 0;     // of the earlier submission
  uint64_t names_epoch = 0;     // the table's epoch in which `claimed` was filled
  control::KnownEntry entry;    // the response cache's entry for the request
};

// Learns of the end of an operation, on the driving thread, which it must not block.
struct Listener {
  // `status` is that of a detached operation; kOk for any other, whose handle has it.
  void (*on_done)(void* context, Status status) noexcept = nullptr;
  void* context = nullptr;
};

// An operation is launched once a device has all of it in a queue of its own: a stream that waits for
// Operation::on_device then sees its result. Only operations that NCCL runs are launched; others become done at once.
enum class OperationState : uint32_t { kPending, kLaunched, kDone };

struct Operation {
  // ---- written by the submitting thread before Submit; constant until the operation is done
  wire::Request request;
  uint32_t process_set = 0;
  std::vector<TensorArgument> tensors;
  RowLists rows;
  bool allocate_results = false;
  int32_t tag = 0;                            // of a send or recv
  bool patient = false;                       // of a recv: it may wait for its send as long as the job runs
  std::optional<cuda::StreamEvent> computed;  // of CUDA tensors: when their stream has computed them
  int64_t first_ready_ns = 0;  // of a group, for the timeline: when its first tensor was ready; 0: unknown
  void* owner = nullptr;       // keeps the tensors alive; managed by the binding

  // ---- written by the runtime
  int64_t handle = -1;
  int64_t submitted_ns = 0;    // 0: not submitted
  int64_t bytes = 0;           // total size of its tensors
  int automatic_number = -1;   // number in an automatic name; -1: the caller named it
  std::vector<bool*> claimed;  // in-flight flags of its names, in the table's map
  bool holds_names = false;    // true if this operation has set these flags
  bool released = false;       // see OperationTable::Release; guarded by the table's mutex
  Listener listener;           // see OperationTable::Listen; it and the next are guarded by the table's mutex
  bool detached = false;
  GroupTemplate prepared;
  // Blocks of shared regions that its tensors lie in. Holding them prevents reuse while other ranks may write there.
  std::vector<std::shared_ptr<net::SharedBlock>> blocks;

  // The process set that a waiter waits in; kMessage for a message. Atomic, because a thread that is about to wait may
  // read it after another waiter has consumed the handle.
  static constexpr int64_t kMessage = -1;
  std::atomic<int64_t> waits_in{0};

  // ---- the driving thread's
  uint64_t batch = 0;  // see HeldBack; 0: none

  // ---- written by the driving thread; other threads may read it once the operation is launched
  std::shared_ptr<const cuda::Event> on_device;  // happens when the device has done the operation
  std::vector<Result> results;

  // ---- written by the driving thread; other threads may read it once the operation is done
  Status status;
  int32_t last_joined = -1;
  uint64_t message = 0;            // of a message: its number among its sender's messages, once known
  std::atomic<uint32_t> state{0};  // an OperationState; futex word
  std::atomic<uint32_t> sleepers{0};
};

// True if the operation has come to `state`, or further.
inline bool Reached(const Operation& operation, OperationState state) {
  return operation.state.load(std::memory_order_acquire) >= static_cast<uint32_t>(state);
}
inline bool IsDone(const Operation& operation) { return Reached(operation, OperationState::kDone); }

}  // namespace horocache::runtime
