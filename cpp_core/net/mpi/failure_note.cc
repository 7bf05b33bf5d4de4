#include "net/mpi/failure_note.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "net/bootstrap/handshake.h"

namespace horocache::net {
namespace {

constexpr int kFailureTag = 0x6868;
// How long to wait for MPI to send or receive a note.
constexpr int64_t kPatienceNs = 2 * kNsPerS;
constexpr int kMostBytes = 64 << 10;

}  // namespace

void SendFailure(const Communicator& comm, const std::vector<int>& ranks, const Status& why) {
  std::string note = EncodeStatus({why.code(), why.message().substr(0, kMostBytes / 2)});
  const int64_t deadline_ns = NowNs() + kPatienceNs;
  for (const int rank : ranks) {
    // A rank that misses the note waits until its own deadline.
    static_cast<void>(SendInTime(comm.mpi(), comm.get(), note, rank, kFailureTag, deadline_ns));
  }
}

Status PollFailure(const Communicator& comm) {
  MpiMessage message;
  Mpi::Received found;
  const StatusOr<bool> arrived = comm.mpi().Improbe(kFailureTag, comm.get(), &message, &found);
  if (!arrived.ok()) return arrived.status();
  if (!*arrived) return Status::Ok();
  auto note = std::make_unique<std::string>(static_cast<size_t>(std::clamp(found.count, 0, kMostBytes)), '\0');
  MpiRequest request;
  HC_RETURN_IF_ERROR(
      comm.mpi().Imrecv(note->data(), static_cast<int>(note->size()), comm.mpi().byte(), &message, &request));
  const Status received = FinishInTime(comm.mpi(), &request, NowNs() + kPatienceNs, "hearing of a start that failed");
  if (!received.ok()) {
    note.release();  // NOLINT  see Note [Requests past their deadline]
    return received;
  }
  const std::optional<Status> why = DecodeStatus(*note);
  if (why && !why->ok()) return *why;
  return {StatusCode::kCorrupt, "rank " + std::to_string(found.from) +
                                    " has failed to start and sent its reason in a message "
                                    "that does not decode; do all ranks run the same version?"};
}

}  // namespace horocache::net
