// One submitted request and everything it needs until its handle is consumed.
//
// Records are pooled: a record that is used again keeps the capacity of its strings and vectors, so that steady state
// allocates nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "control/response_cache.h"
#include "net/region_heap.h"
#include "wire/message.h"

namespace horocache::runtime {

// Memory of one tensor as the caller handed it over. `output` is null where the core allocates the result.
struct TensorArgument {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  int64_t count = 0;  // elements of the input
  int64_t rows = 0;   // its first dimension; 1 for a scalar
};

// What one rank says about the rows of its tensor and its result; see data::Collective.
struct RowLists {
  std::vector<int64_t> splits, send_starts, receive_rows, receive_starts;
};

struct FreeDeleter {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using OwnedBytes = std::unique_ptr<std::byte, FreeDeleter>;

// A tensor that the core allocated because its size was known only after the ranks had met.
struct Result {
  OwnedBytes bytes;
  int64_t size_bytes = 0;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::vector<int64_t> rows;  // received from each rank
  int divisor_ranks = 0;      // what an average of the ranks' parts divides by
};

// Of a record that carries one group after another of the same name: what the group before has shown. Who fills the
// record says what still holds; see Note [Groups that are sent again] in operation_table.h.
struct Prepared {
  int* home = nullptr;          // where the table remembers it; null for other records
  bool filled = false;          // the record holds what was submitted before; false from when it is written to
  bool same_request = false;    // nothing of the request has changed since it was submitted before
  bool same_memory = false;     // neither has where its tensors are
  bool numbers_members = true;  // the members' names are made from the group's
  uint32_t process_set = 0;     // of the request
  uint64_t names_epoch = 0;     // of `claimed`
  control::KnownEntry entry;    // of the response cache
};

struct Operation {
  // ---- written by the submitting thread before Submit, constant until the operation is done
  wire::Request request;
  uint32_t process_set = 0;
  std::vector<TensorArgument> tensors;
  RowLists rows;
  bool allocate_results = false;
  int32_t tag = 0;             // of a message
  int64_t first_ready_ns = 0;  // of a group, for the timeline: when its first tensor was there; 0: unknown
  void* owner = nullptr;       // what keeps the tensors alive; belongs to the binding

  // ---- written by the runtime
  int64_t handle = -1;
  int64_t submitted_ns = 0;    // 0: not yet
  int64_t bytes = 0;           // of all its tensors
  int automatic_number = -1;   // of an automatic name; -1 if the caller named it
  std::vector<bool*> claimed;  // flags of its names in the table's map
  bool holds_names = false;    // these are set, by this operation
  Prepared prepared;
  // The memory that its tensors lie in where other ranks write to it, so that it is nobody else's meanwhile.
  std::vector<std::shared_ptr<net::RegionBlock>> blocks;

  // The process set; kMessage for a message. Atomic: a thread that is about to wait may read it after another one that
  // waited has consumed the handle.
  static constexpr int64_t kMessage = -1;
  std::atomic<int64_t> waits_in{0};

  // ---- written by the holder of the role; read by others once `done` is set
  Status status;
  std::vector<Result> results;
  int32_t last_joined = -1;
  uint64_t message = 0;           // of a message: its number among those of its sender, once it is known
  std::atomic<uint32_t> done{0};  // futex word
  std::atomic<uint32_t> sleepers{0};
};

inline bool IsDone(const Operation& operation) { return operation.done.load(std::memory_order_acquire) != 0; }

}  // namespace horocache::runtime
