#include "data/backends/mpi/error_agreement.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace horocache::data {

Status MpiErrorAgreement::Begin(const Status& mine) {
  mine_ = mine;
  agreement_ = Status::Ok();
  lowest_failing_ = mine.ok() ? 0 : queue_.comm.size() - queue_.comm.rank();
  state_ = State::kReducing;
  net::Mpi& mpi = queue_.mpi();
  return mpi.Iallreduce(mpi.in_place(), &lowest_failing_, 1, mpi.TypeOf(DType::kInt64),
                        mpi.OpOf(net::MpiReduction::kMax), queue_.comm.get(), &request_);
}

StatusOr<bool> MpiErrorAgreement::Test() {
  const StatusOr<bool> done = queue_.mpi().Test(&request_, nullptr);
  if (!done.ok() || !*done) return done;
  if (state_ == State::kReducing && lowest_failing_ > 0) {
    HC_RETURN_IF_ERROR(Broadcast(queue_.comm.size() - static_cast<int>(lowest_failing_)));
    return false;
  }
  if (state_ == State::kBroadcasting) {
    const auto bytes = static_cast<size_t>(std::clamp<int32_t>(words_.bytes, 0, kTextBytes));
    agreement_ = Status(static_cast<StatusCode>(words_.code), std::string(words_.text.data(), bytes));
  }
  state_ = State::kIdle;
  return true;
}

Status MpiErrorAgreement::Broadcast(int rank) {
  if (rank == queue_.comm.rank()) {
    words_.code = static_cast<int32_t>(mine_.code());
    words_.bytes = static_cast<int32_t>(std::min(mine_.message().size(), kTextBytes));
    std::memcpy(words_.text.data(), mine_.message().data(), static_cast<size_t>(words_.bytes));
  }
  state_ = State::kBroadcasting;
  net::Mpi& mpi = queue_.mpi();
  return mpi.Ibcast(&words_, sizeof(words_), mpi.byte(), rank, queue_.comm.get(), &request_);
}

}  // namespace horocache::data
