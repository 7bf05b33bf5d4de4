#include "net/mpi/host_clock.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "net/mpi/watchdog.h"

namespace horocache::net {
namespace {

constexpr int kClockTag = 0x636c;
constexpr int kQuestions = 8;

class Clocks {
 public:
  Clocks(const Communicator& comm, const std::vector<int>& host_of, int64_t deadline_ns, const WaitCheck& check)
      : comm_(comm), host_of_(host_of), deadline_ns_(deadline_ns), check_(check) {}

  // Rank 0's part: answers the first rank of every other host, one host after the other.
  Status Answer() {
    for (int rank = 1; rank < comm_.size(); ++rank) {
      if (FirstBeside(rank) != rank) continue;
      for (int i = 0; i < kQuestions; ++i) {
        int64_t question = 0;
        HC_RETURN_IF_ERROR(Receive(rank, &question));
        HC_RETURN_IF_ERROR(Send(rank, NowNs()));
      }
    }
    return Status::Ok();
  }

  // The other ranks' part: the first rank of a host asks rank 0 and passes the result on to the ranks of its host.
  StatusOr<ClockOffset> Ask() {
    const int first = FirstBeside(comm_.rank());
    ClockOffset clock;
    if (first == 0) return clock;
    if (first != comm_.rank()) {
      for (int64_t* part : {&clock.offset_ns, &clock.error_ns, &clock.measured_ns}) {
        HC_RETURN_IF_ERROR(Receive(first, part));
      }
      return clock;
    }
    for (int i = 0; i < kQuestions; ++i) HC_RETURN_IF_ERROR(AskOnce(i == 0, &clock));
    for (int rank = first + 1; rank < comm_.size(); ++rank) {
      if (FirstBeside(rank) != first) continue;
      for (const int64_t part : {clock.offset_ns, clock.error_ns, clock.measured_ns}) {
        HC_RETURN_IF_ERROR(Send(rank, part));
      }
    }
    return clock;
  }

 private:
  // The lowest rank on the host of `rank`.
  int FirstBeside(int rank) const {
    return static_cast<int>(std::ranges::find(host_of_, host_of_[static_cast<size_t>(rank)]) - host_of_.begin());
  }

  Status AskOnce(bool is_first, ClockOffset* clock) {
    const int64_t asked_ns = NowNs();
    int64_t theirs_ns = 0;
    HC_RETURN_IF_ERROR(Send(0, asked_ns));
    HC_RETURN_IF_ERROR(Receive(0, &theirs_ns));
    const int64_t now_ns = NowNs(), error_ns = (now_ns - asked_ns + 1) / 2;
    if (is_first || error_ns < clock->error_ns) *clock = {theirs_ns - (asked_ns + error_ns), error_ns, now_ns};
    return Status::Ok();
  }

  Status Send(int to, int64_t number) {
    std::string bytes(sizeof(number), '\0');
    std::memcpy(bytes.data(), &number, sizeof(number));
    return Late(to, SendInTime(comm_.mpi(), comm_.get(), bytes, to, kClockTag, deadline_ns_, check_));
  }

  Status Receive(int from, int64_t* number) {
    const StatusOr<std::string> bytes =
        ReceiveInTime(comm_.mpi(), comm_.get(), sizeof(*number), from, kClockTag, deadline_ns_, check_);
    if (!bytes.ok()) return Late(from, bytes.status());
    if (bytes->size() != sizeof(*number))
      return {StatusCode::kCorrupt, "rank " + std::to_string(from) + " sent a time that does not decode"};
    std::memcpy(number, bytes->data(), sizeof(*number));
    return Status::Ok();
  }

  Status Late(int rank, const Status& status) const {
    if (status.ok()) return status;
    HC_RETURN_IF_ERROR(net::Ask(check_));  // the check may know the cause
    return {status.code(), "rank " + std::to_string(rank) +
                               " called init() and did not answer when clocks were compared (" + status.message() +
                               "). Is it running? See its output for the cause."};
  }

  const Communicator& comm_;
  const std::vector<int>& host_of_;
  const int64_t deadline_ns_;
  const WaitCheck& check_;
};

}  // namespace

StatusOr<ClockOffset> MeasureClock(const Communicator& comm, const std::vector<int>& host_of, int64_t timeout_ns,
                                   const WaitCheck& check) {
  const Watchdog watchdog = Watchdog::OfStep(comm.rank(), timeout_ns, "clocks were compared");
  Clocks clocks(comm, host_of, NowNs() + timeout_ns, check);
  if (comm.rank() != 0) return clocks.Ask();
  HC_RETURN_IF_ERROR(clocks.Answer());
  return ClockOffset();
}

}  // namespace horocache::net
