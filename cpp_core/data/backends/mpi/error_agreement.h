// Error agreement over MPI: if one rank cannot continue, all ranks end the operation with the same error.
//
// It takes one small allreduce if no rank has an error. Otherwise the lowest rank with an error then broadcasts it.
//
// Threads: the driving thread. MPI uses the object's memory while the agreement is under way.
#pragma once

#include <array>
#include <cstdint>

#include "base/status.h"
#include "data/backends/mpi/task.h"

namespace horocache::data {

class MpiErrorAgreement {
 public:
  explicit MpiErrorAgreement(MpiQueue* queue) : queue_(*queue) {}

  // Starts the agreement. Every rank calls it, with its own status.
  Status Begin(const Status& mine);
  // True when the agreement is complete. Not ok: an MPI call failed.
  StatusOr<bool> Test();
  // The agreed status, once Test has returned true.
  const Status& agreed() const { return agreement_; }

 private:
  static constexpr size_t kTextBytes = 1024;
  enum class State { kIdle, kReducing, kBroadcasting };
  struct Words {
    int32_t code = 0;
    int32_t bytes = 0;
    std::array<char, kTextBytes> text = {};
  };

  Status Broadcast(int rank);

  MpiQueue& queue_;
  State state_ = State::kIdle;
  int64_t lowest_failing_ =
      0;  // 0: no error; else the number of ranks minus the rank with the error: the lowest rank wins
  Status mine_, agreement_;
  Words words_;
  net::MpiRequest request_;
};

}  // namespace horocache::data
