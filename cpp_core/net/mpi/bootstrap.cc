#include "net/mpi/bootstrap.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "net/bootstrap/handshake.h"
#include "net/mpi/watchdog.h"

namespace horocache::net {
namespace {

constexpr int kHelloTag = 0x6866, kReplyTag = 0x6867;  // unlikely to be tags of the program
constexpr size_t kHelloBytes = 64 << 10;
constexpr size_t kReplyBytes = 1 << 20;  // the reply has the hosts of all ranks
// How long CopyForAll waits for the other ranks' hellos once the duplication has timed out.
constexpr int64_t kPresenceCheckNs = 3 * kNsPerS;

struct Arrival {
  Hello hello;
  Host host;
};

std::string EncodeArrival(const Arrival& arrival) {
  return EncodeTexts({EncodeHello(arrival.hello), arrival.host.key, arrival.host.name});
}

std::optional<Arrival> DecodeArrival(std::string_view payload) {
  const auto texts = DecodeTexts(payload);
  if (!texts || texts->size() != 3) return std::nullopt;
  std::optional<Hello> hello = DecodeHello((*texts)[0]);
  if (!hello) return std::nullopt;
  return Arrival{std::move(*hello), {(*texts)[1], (*texts)[2]}};
}

std::string EncodePlacement(const Placement& placement) {
  const std::vector<uint32_t> hosts(placement.host_of.begin(), placement.host_of.end());
  std::vector<std::string> texts = {placement.job, placement.announcement, EncodeNumbers(hosts)};
  texts.insert(texts.end(), placement.host_names.begin(), placement.host_names.end());
  return EncodeTexts(texts);
}

std::optional<Placement> DecodePlacement(std::string_view payload, int size) {
  auto texts = DecodeTexts(payload);
  if (!texts || texts->size() < 4) return std::nullopt;
  const auto hosts = DecodeNumbers((*texts)[2]);
  Placement placement;
  placement.job = (*texts)[0];
  placement.announcement = (*texts)[1];
  placement.host_names.assign(texts->begin() + 3, texts->end());
  if (!hosts || static_cast<int>(hosts->size()) != size) return std::nullopt;
  for (const uint32_t host : *hosts) {
    if (host >= placement.host_names.size()) return std::nullopt;
    placement.host_of.push_back(static_cast<int>(host));
  }
  return placement;
}

std::string RandomName() {
  uint64_t number[2] = {};
  // getrandom returns all of up to 256 bytes; the clock replaces it where it fails.
  if (getrandom(number, sizeof(number), 0) != sizeof(number)) number[0] = static_cast<uint64_t>(NowNs());
  return std::to_string(number[0]) + std::to_string(number[1]);
}

Placement PlaceAll(const std::vector<std::optional<Arrival>>& arrivals) {
  Placement placement;
  placement.job = RandomName();
  std::map<std::string, int> numbers;
  for (const std::optional<Arrival>& arrival : arrivals) {
    const auto [found, fresh] = numbers.emplace(arrival->host.key, static_cast<int>(numbers.size()));
    placement.host_of.push_back(found->second);
    if (fresh) placement.host_names.push_back(arrival->host.name);
  }
  return placement;
}

// Rank 0's part of the bootstrap. Used by one thread, until Run returns.
class Rank0 {
 public:
  Rank0(const Communicator& comm, Arrival own, std::string announcement, int64_t timeout_ns, const WaitCheck& check,
        int64_t waited_ns)
      : comm_(comm),
        announcement_(std::move(announcement)),
        timeout_ns_(timeout_ns),
        waited_ns_(waited_ns),
        check_(check),
        arrivals_(static_cast<size_t>(comm.size())) {
    arrivals_[0] = std::move(own);
  }

  StatusOr<Placement> Run() {
    const Status gathered = Gather(NowNs() + timeout_ns_);
    Status outcome = gathered.ok() ? Compare() : gathered;
    if (outcome.ok()) outcome = CheckAnnouncement(announcement_);
    Placement placement;
    if (outcome.ok()) placement = PlaceAll(arrivals_);
    placement.announcement = announcement_;
    const Status sent = SendOutcome(
        EncodeTexts({EncodeStatus(ForOthers("rank 0", outcome)), outcome.ok() ? EncodePlacement(placement) : ""}));
    if (!outcome.ok()) return outcome;
    if (!sent.ok()) return sent;
    return placement;
  }

 private:
  Status Gather(int64_t deadline_ns);
  Status Compare() const;
  Status SendOutcome(const std::string& outcome);

  const Communicator& comm_;
  const std::string announcement_;
  const int64_t timeout_ns_, waited_ns_;
  const WaitCheck& check_;
  std::vector<std::optional<Arrival>> arrivals_;
};

// Receives the hello of each rank in turn; see Note [Receives from any source].
Status Rank0::Gather(int64_t deadline_ns) {
  std::vector<int> absent;
  Status late, stopped;
  for (int rank = 1; rank < comm_.size(); ++rank) {
    const StatusOr<std::string> hello =
        ReceiveInTime(comm_.mpi(), comm_.get(), kHelloBytes, rank, kHelloTag, deadline_ns, check_);
    if (!hello.ok()) {
      if (stopped.ok()) stopped = Ask(check_);
      if (!stopped.ok()) deadline_ns = 0;  // only hellos that have arrived: their ranks get the reason
      absent.push_back(rank);
      late = hello.status();
      continue;  // the hellos of later ranks may have come in time
    }
    std::optional<Arrival>& arrival = arrivals_[static_cast<size_t>(rank)];
    arrival = DecodeArrival(*hello);
    if (!arrival || static_cast<int>(arrival->hello.rank) != rank) {
      return {StatusCode::kCorrupt, "the message of rank " + std::to_string(rank) +
                                        " at start-up does not decode; do all ranks run the same version?"};
    }
  }
  if (absent.empty() || !stopped.ok()) return stopped;
  return {StatusCode::kStartup, NameRanks(absent) + " of " + std::to_string(comm_.size()) +
                                    " did not call init() within " + SecondsText(waited_ns_ + timeout_ns_) +
                                    " after rank 0 did, or ended in it, or cannot be reached over MPI (" +
                                    late.message() +
                                    "). Is every rank running, and not waiting for another rank before init()? "
                                    "HOROCACHE_START_TIMEOUT sets the time"};
}

Status Rank0::Compare() const {
  std::vector<const Hello*> hellos;
  for (const std::optional<Arrival>& arrival : arrivals_) hellos.push_back(&arrival->hello);
  const std::string differences = Differences(hellos);
  if (differences.empty()) return Status::Ok();
  return {StatusCode::kVersionSkew, "the ranks of the job were started with different versions or settings:" +
                                        differences + "\nMake them equal on all ranks."};
}

Status Rank0::SendOutcome(const std::string& outcome) {
  auto payload = std::make_unique<std::string>(outcome);
  std::vector<MpiRequest> requests(static_cast<size_t>(comm_.size()), comm_.mpi().null_request());
  Status status;
  for (int rank = 1; rank < comm_.size(); ++rank) {
    if (!arrivals_[static_cast<size_t>(rank)]) continue;  // the message could match a receive of the program
    const Status sent = comm_.mpi().Isend(payload->data(), static_cast<int>(payload->size()), comm_.mpi().byte(), rank,
                                          kReplyTag, comm_.get(), &requests[static_cast<size_t>(rank)]);
    if (!sent.ok() && status.ok()) status = sent;
  }
  const int64_t deadline_ns = NowNs() + kLastWordNs;
  bool late = false;
  for (MpiRequest& request : requests) {
    if (comm_.mpi().IsNull(request)) continue;
    const Status finished = FinishInTime(comm_.mpi(), &request, deadline_ns, "telling the ranks that the job starts");
    late |= !finished.ok();
    if (!finished.ok() && status.ok()) status = finished;
  }
  if (late) payload.release();  // NOLINT
  return status;
}

StatusOr<Placement> AskRank0(const Communicator& comm, const Arrival& own, int64_t timeout_ns, const WaitCheck& check,
                             int64_t waited_ns) {
  const int64_t deadline_ns = NowNs() + timeout_ns + kLastWordNs;
  const auto silent = [&](const Status& why) -> Status {
    HC_RETURN_IF_ERROR(Ask(check));
    return Status(StatusCode::kStartup, "rank 0 of " + std::to_string(comm.size()) +
                                            " did not answer over MPI within " + SecondsText(waited_ns + timeout_ns) +
                                            " (" + why.message() +
                                            "). Is it running, and not waiting for this rank before init()? See the "
                                            "errors of the other ranks, too: when one dies while MPI connects them, "
                                            "messages between others may be lost.");
  };
  const Status sent = SendInTime(comm.mpi(), comm.get(), EncodeArrival(own), 0, kHelloTag, deadline_ns, check);
  if (!sent.ok()) return silent(sent);
  const auto answer = ReceiveInTime(comm.mpi(), comm.get(), kReplyBytes, 0, kReplyTag, deadline_ns, check);
  if (!answer.ok()) return silent(answer.status());
  const auto texts = DecodeTexts(*answer);
  const auto outcome = texts && texts->size() == 2 ? DecodeStatus((*texts)[0]) : std::nullopt;
  if (outcome && !outcome->ok()) return *outcome;
  std::optional<Placement> placement;
  if (outcome) placement = DecodePlacement((*texts)[1], comm.size());
  if (!placement) return Status(StatusCode::kCorrupt, "rank 0 sent a start-up outcome that does not decode");
  return *placement;
}

}  // namespace

std::vector<int> Placement::RanksOn(int host) const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < host_of.size(); ++rank) {
    if (host_of[rank] == host) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

StatusOr<Placement> BootstrapOverMpi(const Communicator& comm, const Introduction& introduction, int64_t timeout_ns,
                                     const WaitCheck& check, int64_t waited_ns) {
  const Watchdog watchdog = Watchdog::OfStep(comm.rank(), timeout_ns, "the ranks exchanged their addresses");
  Arrival own;
  own.hello.rank = static_cast<uint32_t>(comm.rank());
  own.hello.size = static_cast<uint32_t>(comm.size());
  own.hello.pid = static_cast<uint32_t>(getpid());
  own.hello.byte_order = OwnByteOrder();
  own.hello.handshake = introduction.handshake;
  own.host = introduction.host;
  if (comm.rank() != 0) return AskRank0(comm, own, timeout_ns, check, waited_ns);
  return Rank0(comm, std::move(own), introduction.announcement, timeout_ns, check, waited_ns).Run();
}

StatusOr<Communicator> CopyForAll(Mpi* mpi, MpiComm comm, const Introduction& own, int64_t timeout_ns,
                                  const WaitCheck& check) {
  const Watchdog watchdog = Watchdog::OfStep(mpi->Rank(comm), timeout_ns, "a communicator was duplicated");
  const int64_t deadline_ns = NowNs() + timeout_ns;
  StatusOr<Communicator> copy = Communicator::Duplicate(mpi, comm, deadline_ns, check);
  if (copy.ok()) return copy;
  HC_RETURN_IF_ERROR(Ask(check));
  if (NowNs() < deadline_ns) return copy;
  const Status called =
      BootstrapOverMpi(Communicator::Borrow(mpi, comm), own, kPresenceCheckNs, check, timeout_ns).status();
  return called.ok() ? copy.status() : called;
}

}  // namespace horocache::net
