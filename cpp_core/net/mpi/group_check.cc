#include "net/mpi/group_check.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "net/bootstrap/handshake.h"
#include "net/mpi/watchdog.h"

namespace horocache::net {
namespace {

constexpr size_t kAnswerBytes = 1 << 20;  // the answer has up to two lists of ranks

// One comparison, from one rank's view. Used by one thread, until Run returns.
class Comparison {
 public:
  Comparison(Mpi* mpi, MpiComm comm, const std::vector<int>& members, const std::string& call, int tag,
             int64_t timeout_ns, const WaitCheck& check)
      : mpi_(*mpi),
        comm_(comm),
        members_(members),
        lowest_(*std::ranges::min_element(members)),
        call_(call),
        tag_(tag),
        check_(check),
        timeout_ns_(timeout_ns),
        deadline_ns_(NowNs() + timeout_ns) {}

  Status Run() {
    if (mpi_.Rank(comm_) != lowest_) return SendList();
    const Status outcome = Hear();
    const std::string encoded = EncodeStatus(ForOthers("rank " + std::to_string(lowest_), outcome));
    Status sent;
    const int64_t deadline_ns = NowNs() + kLastWordNs;
    for (const int rank : came_) {
      Status late = SendInTime(mpi_, comm_, encoded, rank, tag_, deadline_ns);
      if (sent.ok()) sent = std::move(late);
    }
    return outcome.ok() ? sent : outcome;
  }

 private:
  std::string Given(const std::vector<int>& members) const { return call_ + "[" + ListText(members) + "])"; }

  // Receives the lists of all members, so that all members that come get the same answer. After the first error it
  // waits only a short time for the others.
  Status Hear() {
    Status outcome;
    int64_t deadline_ns = deadline_ns_;
    for (const int rank : members_) {
      if (rank == lowest_) continue;
      const size_t most = static_cast<size_t>(mpi_.Size(comm_)) * sizeof(int);
      const StatusOr<std::string> list = ReceiveInTime(mpi_, comm_, most, rank, tag_, deadline_ns, check_);
      if (list.ok()) came_.push_back(rank);
      if (!outcome.ok()) continue;
      outcome = list.ok() ? Compare(rank, *list) : Absent(rank, list.status());
      if (!outcome.ok()) deadline_ns = std::min(deadline_ns, NowNs() + kLastWordNs / 2);
    }
    // The check comes last: a member that has seen a failure meanwhile no longer waits for this rank.
    return outcome.ok() ? net::Ask(check_) : outcome;
  }

  Status Compare(int rank, const std::string& bytes) const {
    std::vector<int> theirs(bytes.size() / sizeof(int));
    std::copy_n(bytes.data(), theirs.size() * sizeof(int), reinterpret_cast<char*>(theirs.data()));
    if (theirs == members_) return Status::Ok();
    return {StatusCode::kInvalidArgument, "rank " + std::to_string(rank) + " called " + Given(theirs) + ", rank " +
                                              std::to_string(lowest_) + " called " + Given(members_) +
                                              "; give the same list on all ranks of it"};
  }

  Status SendList() {
    const std::string list(reinterpret_cast<const char*>(members_.data()), members_.size() * sizeof(int));
    const Status sent = SendInTime(mpi_, comm_, list, lowest_, tag_, deadline_ns_, check_);
    if (!sent.ok()) return Absent(lowest_, sent);
    // From here on the other members rely on this rank. An interrupt (kAborted) must not make it leave now: they would
    // wait for it inside MPI.
    const WaitCheck lost = [this]() -> Status {
      Status why = net::Ask(check_);
      return why.code() == StatusCode::kAborted ? Status::Ok() : why;
    };
    const StatusOr<std::string> answer =
        ReceiveInTime(mpi_, comm_, kAnswerBytes, lowest_, tag_, deadline_ns_ + kLastWordNs, lost);
    if (!answer.ok()) return Absent(lowest_, answer.status());
    const std::optional<Status> outcome = DecodeStatus(*answer);
    if (outcome) return *outcome;
    return {StatusCode::kCorrupt, "the answer of rank " + std::to_string(lowest_) + " to " + Given(members_) +
                                      " does not decode; do all ranks run the same version?"};
  }

  Status Absent(int rank, const Status& why) const {
    HC_RETURN_IF_ERROR(Ask(check_));
    return {StatusCode::kStartup, "rank " + std::to_string(rank) + " did not call " + Given(members_) + " within " +
                                      SecondsText(timeout_ns_) + " after rank " + std::to_string(mpi_.Rank(comm_)) +
                                      " did (HOROCACHE_START_TIMEOUT; " + why.message() +
                                      "). Is it running, and does it give the same list?"};
  }

  Mpi& mpi_;
  const MpiComm comm_;
  const std::vector<int>& members_;
  const int lowest_;
  const std::string& call_;
  const int tag_;
  const WaitCheck& check_;
  const int64_t timeout_ns_, deadline_ns_;
  std::vector<int> came_;
};

}  // namespace

Status CompareMembers(Mpi* mpi, MpiComm comm, const std::vector<int>& members, const std::string& call, int tag,
                      int64_t timeout_ns, const WaitCheck& check) {
  const Watchdog watchdog =
      Watchdog::OfStep(mpi->Rank(comm), timeout_ns, call + "[" + ListText(members) + "]) was compared");
  return Comparison(mpi, comm, members, call, tag, timeout_ns, check).Run();
}

}  // namespace horocache::net
