// A transport over MPI's one-sided operations.
#include <algorithm>
#include <utility>
#include <vector>

#include "moe/remote/transport.h"
#include "net/mpi/mpi_process.h"
#include "net/mpi/orphaned_requests.h"

namespace horocache::moe {
namespace {

constexpr int kGoodbyeTag = 4;
constexpr size_t kMostBytesOfPut = size_t{1} << 30;

class RmaTransport final : public Transport {
 public:
  RmaTransport(net::Communicator comm, net::MpiWin window, std::vector<std::string> names, RemoteTarget target)
      : comm_(std::move(comm)), window_(window), names_(std::move(names)), target_(std::move(target)) {}

  // Frees the window, as all other ranks do, if all have said goodbye.
  ~RmaTransport() override {
    if (comm_.mpi().Finalized() || (AllHaveLeft() && comm_.mpi().FreeWindow(&window_).ok())) return;
    // The memory belongs to MPI now, until the process ends.
    net::KeepOwnedForMpi(std::make_shared<RemoteTarget>(target_));
    net::KeepUntilExit(std::move(goodbyes_));
    net::LeaveMpiUnfinalized();
    comm_.Abandon();
  }

  bool survives_losses() const override { return false; }
  bool sees_arrivals() const override { return false; }

  // See Note [Two ways to another host].
  StatusOr<bool> Carry(const RemoteWrite& write, size_t* sent) override {
    net::Mpi& mpi = comm_.mpi();
    const std::span<const std::byte> payload = write.payload.span();
    Status status;
    while (status.ok() && *sent < payload.size()) {
      const size_t bytes = std::min(payload.size() - *sent, kMostBytesOfPut);
      status = mpi.Put(payload.data() + *sent, static_cast<int>(bytes), write.peer, write.offset + *sent, window_);
      *sent += bytes;
    }
    if (status.ok() && !payload.empty()) status = mpi.FlushWindow(write.peer, window_);
    if (status.ok() && write.word_offset != RemoteWrite::kNoWord) {
      status = mpi.StoreWord(&write.word, write.peer, write.word_offset, window_);
      if (status.ok()) status = mpi.FlushWindow(write.peer, window_);
    }
    if (status.ok()) return true;
    return Lost("cannot write to " + names_[static_cast<size_t>(write.peer)], status);
  }

  // The writes of others come without this rank; but some MPI libraries need its calls for that.
  StatusOr<bool> Receive() override {
    net::Mpi& mpi = comm_.mpi();
    for (;;) {
      net::MpiMessage message;
      net::Mpi::Received found;
      const StatusOr<bool> arrived = mpi.Improbe(kGoodbyeTag, comm_.get(), &message, &found);
      net::MpiRequest request;
      Status status = arrived.status();
      if (arrived.ok() && !*arrived) return false;
      if (status.ok()) status = mpi.Imrecv(nullptr, 0, mpi.byte(), &message, &request);
      StatusOr<bool> done = false;  // a message without bytes, which has arrived
      while (status.ok() && !*done) {
        done = mpi.Test(&request, nullptr);
        status = done.status();
      }
      if (!status.ok()) return Lost("cannot receive", status);
      ++left_;
    }
  }

  Status SayGoodbye() override {
    net::Mpi& mpi = comm_.mpi();
    for (int to = 0; to < comm_.size(); ++to) {
      if (to == comm_.rank()) continue;
      net::MpiRequest request;
      const Status sent = mpi.Isend(nullptr, 0, mpi.byte(), to, kGoodbyeTag, comm_.get(), &request);
      if (!sent.ok()) return Lost("cannot say goodbye to " + names_[static_cast<size_t>(to)], sent);
      goodbyes_.push_back(request);
    }
    return Status::Ok();
  }

  bool AllHaveLeft() override {
    std::erase_if(goodbyes_, [this](net::MpiRequest& request) {
      const StatusOr<bool> done = comm_.mpi().Test(&request, nullptr);
      return done.ok() && *done;
    });
    return left_ == comm_.size() - 1 && goodbyes_.empty();
  }

 private:
  Status Lost(const std::string& what, const Status& why) const {
    return {StatusCode::kPeerLost,
            names_[static_cast<size_t>(comm_.rank())] + " " + what + " over MPI: " + why.message()};
  }

  net::Communicator comm_;
  net::MpiWin window_;
  const std::vector<std::string> names_;
  const RemoteTarget target_;
  std::vector<net::MpiRequest> goodbyes_;  // under way
  int left_ = 0;                           // ranks that have said goodbye
};

}  // namespace

StatusOr<std::unique_ptr<Transport>> MakeRmaTransport(net::Communicator comm, std::vector<std::string> names,
                                                      RemoteTarget target) {
  net::MpiWin window;
  HC_RETURN_IF_ERROR(comm.mpi().CreateWindow(target.block.data(), target.block.size(), comm.get(), &window));
  return std::unique_ptr<Transport>(
      std::make_unique<RmaTransport>(std::move(comm), window, std::move(names), std::move(target)));
}

}  // namespace horocache::moe
