// How ranks find out over MPI that one of them cannot go on, all with the same words.
//
// One small allreduce if nobody objects; else the lowest rank that does tells the others why.
//
// Role: lanes. Its memory is MPI's while it is under way.
#pragma once

#include <array>
#include <cstdint>

#include "base/status.h"
#include "data/backends/mpi/mpi_operation.h"

namespace horocache::data {

class MpiVerdict {
 public:
  explicit MpiVerdict(MpiQueue* queue) : queue_(*queue) {}

  // Every rank does so, with what it has to say.
  Status Begin(const Status& mine);
  // True when the verdict is there. Not ok: MPI failed.
  StatusOr<bool> Test();
  const Status& verdict() const { return verdict_; }

 private:
  static constexpr size_t kTextBytes = 1024;
  enum class State { kIdle, kAsking, kTelling };
  struct Words {
    int32_t code = 0;
    int32_t bytes = 0;
    std::array<char, kTextBytes> text = {};
  };

  Status Tell(int rank);

  MpiQueue& queue_;
  State state_ = State::kIdle;
  int64_t objection_ = 0;  // 0: none; else the number of ranks minus that of the objector: the lowest wins
  Status mine_, verdict_;
  Words words_;
  net::MpiRequest request_;
};

}  // namespace horocache::data
