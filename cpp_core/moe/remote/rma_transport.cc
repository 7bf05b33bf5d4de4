// A transport over MPI's one-sided operations.
#include <algorithm>
#include <deque>
#include <utility>

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
    net::Mpi& mpi = comm_.mpi();
    if (mpi.Finalized()) return;
    const bool complete = std::ranges::all_of(goodbyes_, [&](net::MpiRequest& request) {
      const StatusOr<bool> done = mpi.Test(&request, nullptr);
      return done.ok() && *done;
    });
    if (broken_.ok() && AllHaveLeft() && complete && mpi.FreeWindow(&window_).ok()) return;
    // The memory belongs to MPI now, until the process ends.
    net::KeepOwnedForMpi(std::make_shared<RemoteTarget>(target_));
    net::KeepUntilExit(std::move(goodbyes_));
    net::LeaveMpiUnfinalized();
    comm_.Abandon();
  }

  // Waits for MPI, see Note [Two ways to another host].
  bool Carry(const RemoteWrite& write, size_t* sent) override {
    net::Mpi& mpi = comm_.mpi();
    const std::span<const std::byte> payload = write.payload.span();
    Status status;
    while (status.ok() && *sent < payload.size()) {
      const size_t bytes = std::min(payload.size() - *sent, kMostBytesOfPut);
      status = mpi.Put(payload.data() + *sent, static_cast<int>(bytes), write.peer, write.offset + *sent, window_);
      *sent += bytes;
    }
    if (status.ok()) status = mpi.FlushWindow(write.peer, window_);
    if (status.ok() && write.word_offset != RemoteWrite::kNoWord) {
      status = mpi.StoreWord(&write.word, write.peer, write.word_offset, window_);
      if (status.ok()) status = mpi.FlushWindow(write.peer, window_);
    }
    if (status.ok()) return true;
    Break(names_[static_cast<size_t>(comm_.rank())] + " cannot write to " + names_[static_cast<size_t>(write.peer)] +
          " over MPI: " + status.message());
    return false;
  }

  // What others write comes without this rank; but some MPI libraries need its calls for that.
  bool Receive() override {
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
      if (!status.ok()) {
        Break(names_[static_cast<size_t>(comm_.rank())] + " cannot receive over MPI: " + status.message());
        return false;
      }
      ++left_;
    }
  }

  bool sees_arrivals() const override { return false; }
  const Status& broken() const override { return broken_; }

  void SayGoodbye() override {
    net::Mpi& mpi = comm_.mpi();
    for (int to = 0; to < comm_.size() && broken_.ok(); ++to) {
      if (to == comm_.rank()) continue;
      goodbyes_.emplace_back();
      const Status status = mpi.Isend(nullptr, 0, mpi.byte(), to, kGoodbyeTag, comm_.get(), &goodbyes_.back());
      if (!status.ok()) Break("a goodbye cannot be sent over MPI: " + status.message());
    }
  }

  bool AllHaveLeft() override { return left_ == comm_.size() - 1; }

 private:
  void Break(const std::string& why) {
    if (broken_.ok()) broken_ = {StatusCode::kPeerLost, why};
  }

  net::Communicator comm_;
  net::MpiWin window_;
  const std::vector<std::string> names_;
  const RemoteTarget target_;
  std::deque<net::MpiRequest> goodbyes_;
  int left_ = 0;  // ranks that have said goodbye
  Status broken_;
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
