#include "net/mpi/communicator.h"

#include <algorithm>
#include <memory>

#include "base/clock.h"
#include "base/text.h"
#include "net/bootstrap/handshake.h"
#include "net/mpi/mpi_process.h"
#include "net/mpi/watchdog.h"

namespace horocache::net {
namespace {

// The pause between two tests of a request doubles from the shortest to the longest value.
constexpr int64_t kShortestNapNs = 10 * kNsPerUs;
constexpr int64_t kLongestTestNapNs = kNsPerMs;
// Time between two calls of a WaitCheck.
constexpr int64_t kWaitCheckNs = 50 * kNsPerMs;

}  // namespace

Status FinishInTime(Mpi& mpi, MpiRequest* request, int64_t deadline_ns, const std::string& what,
                    Mpi::Received* received, const WaitCheck& check) {
  int64_t check_ns = NowNs() + kWaitCheckNs;
  for (int64_t nap_ns = kShortestNapNs;; nap_ns = std::min(2 * nap_ns, kLongestTestNapNs)) {
    const StatusOr<bool> done = mpi.Test(request, received);
    if (!done.ok()) return {StatusCode::kStartup, what + ": " + done.status().message()};
    if (*done) return Status::Ok();
    const int64_t now_ns = NowNs();
    if (now_ns >= deadline_ns) return {StatusCode::kStartup, what + ": the other ranks did not come in time"};
    if (now_ns >= check_ns) {
      HC_RETURN_IF_ERROR(Ask(check));
      check_ns = now_ns + kWaitCheckNs;
    }
    Nap(nap_ns);
  }
}

Status SendInTime(Mpi& mpi, MpiComm comm, const std::string& bytes, int to, int tag, int64_t deadline_ns,
                  const WaitCheck& check) {
  auto buffer = std::make_unique<std::string>(bytes);
  MpiRequest request;
  HC_RETURN_IF_ERROR(mpi.Isend(buffer->data(), static_cast<int>(buffer->size()), mpi.byte(), to, tag, comm, &request));
  Status sent = FinishInTime(mpi, &request, deadline_ns, "start-up", nullptr, check);
  if (!sent.ok()) buffer.release();  // NOLINT  see Note [Requests past their deadline]
  return sent;
}

StatusOr<std::string> ReceiveInTime(Mpi& mpi, MpiComm comm, size_t most, int from, int tag, int64_t deadline_ns,
                                    const WaitCheck& check) {
  auto buffer = std::make_unique<std::string>(most, '\0');
  MpiRequest request;
  Mpi::Received received;
  HC_RETURN_IF_ERROR(mpi.Irecv(buffer->data(), static_cast<int>(most), mpi.byte(), from, tag, comm, &request));
  if (Status late = FinishInTime(mpi, &request, deadline_ns, "start-up", &received, check); !late.ok()) {
    buffer.release();  // NOLINT
    return late;
  }
  buffer->resize(static_cast<size_t>(received.count));
  return std::move(*buffer);
}

StatusOr<Communicator> Communicator::Duplicate(Mpi* mpi, MpiComm comm, int64_t deadline_ns, const WaitCheck& check) {
  // The library writes the handle when the request completes, see Note [Requests past their deadline].
  auto copy = std::make_unique<MpiComm>();
  MpiRequest request;
  HC_RETURN_IF_ERROR(mpi->StartDup(comm, copy.get(), &request));
  if (Status late = FinishInTime(*mpi, &request, deadline_ns, "duplicating a communicator", nullptr, check);
      !late.ok()) {
    copy.release();         // NOLINT
    LeaveMpiUnfinalized();  // the duplication is still under way
    return late;
  }
  HC_RETURN_IF_ERROR(mpi->ReturnErrors(*copy));
  return Communicator(mpi, *copy);
}

Communicator Communicator::Borrow(Mpi* mpi, MpiComm comm) {
  Communicator borrowed(mpi, comm);
  borrowed.Abandon();
  return borrowed;
}

StatusOr<Communicator> Communicator::Group(Mpi* mpi, MpiComm comm, const std::vector<int>& ranks, int tag,
                                           int64_t limit_ns, const std::function<void(const Status&)>& late) {
  const int own = mpi->Rank(comm);
  const Watchdog watchdog(limit_ns, [&ranks, own, limit_ns, &late] {
    std::vector<int> others = ranks;
    std::erase(others, own);
    const std::string why = "rank " + std::to_string(own) + " has waited in MPI for " + SecondsText(limit_ns) +
                            " (HOROCACHE_START_TIMEOUT) for " + NameRanks(others) +
                            ", to make a communicator; one of them has ended, or is not in init().";
    if (late) late({StatusCode::kStartup, why});
    Watchdog::EndProcess(why);
  });
  MpiComm group;
  HC_RETURN_IF_ERROR(mpi->CreateGroup(comm, ranks, tag, &group));
  HC_RETURN_IF_ERROR(mpi->ReturnErrors(group));
  return Communicator(mpi, group);
}

Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (this == &other) return *this;
  Free();
  mpi_ = std::exchange(other.mpi_, nullptr);
  comm_ = other.comm_;
  rank_ = other.rank_;
  size_ = other.size_;
  abandoned_ = other.abandoned_;
  return *this;
}

void Communicator::Free() {
  Mpi* const mpi = std::exchange(mpi_, nullptr);
  // An error is ignored: the handle is invalid after the call in any case.
  if (mpi != nullptr && !abandoned_ && !mpi->Finalized()) static_cast<void>(mpi->Free(&comm_));
}

}  // namespace horocache::net
