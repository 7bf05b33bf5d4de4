// A communicator with an owner, and MPI requests with a deadline.
//
// Note [Requests past their deadline]
// MPI cannot take back a collective that has been started: its memory belongs to the library until it is complete. A
// rank that gives up on a request therefore leaves the memory to the library until the process ends. The job cannot go
// on after that anyway.
//
// Note [Receives from any source]
// MPICH posts such a receive at two places, its shared memory and its network. When messages come to both at once, it
// cancels the receive that has just been matched and never completes the other one (MPICH issues 7203 and 7702; version
// 5.0.2 does it within a few hundred messages). So horocache posts no receive from any source: it takes arrived
// messages with a matched probe, or receives from each rank in turn.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "net/mpi/mpi.h"

namespace horocache::net {

// A wait calls this function from time to time, on the waiting thread. If the function returns an error, the wait ends
// with that error. A function that has returned an error must do so from then on. May be null.
using WaitCheck = std::function<Status()>;
inline Status Ask(const WaitCheck& check) { return check ? check() : Status::Ok(); }

// Tests `request` until it is complete. kStartup, with `what` in the message, when the deadline has passed.
Status FinishInTime(Mpi& mpi, MpiRequest* request, int64_t deadline_ns, const std::string& what,
                    Mpi::Received* received = nullptr, const WaitCheck& check = nullptr);

// Sends or receives one message of bytes, to or from a rank of `comm`. `most` is the largest message in bytes. A
// request that is not complete at the deadline is left to the library, with its memory.
Status SendInTime(Mpi& mpi, MpiComm comm, const std::string& bytes, int to, int tag, int64_t deadline_ns,
                  const WaitCheck& check = nullptr);
StatusOr<std::string> ReceiveInTime(Mpi& mpi, MpiComm comm, size_t most, int from, int tag, int64_t deadline_ns,
                                    const WaitCheck& check = nullptr);

// Owns an MPI communicator and frees it, unless MPI is finalised by then. MPI_Comm_free is collective: all ranks of a
// job must free their communicators in the order in which they made them.
class Communicator {
 public:
  Communicator() = default;
  // A copy of `comm`, made by all its ranks together. kStartup when the deadline has passed.
  static StatusOr<Communicator> Duplicate(Mpi* mpi, MpiComm comm, int64_t deadline_ns, const WaitCheck& check);
  // `comm` itself, without ownership: the caller's communicator is not freed.
  static Communicator Borrow(Mpi* mpi, MpiComm comm);
  // A communicator of `ranks`, some ranks of `comm`; these ranks alone call it. MPI waits for them inside the call,
  // without a limit, so callers find out beforehand, with CompareMembers, whether all of them come. If the call takes
  // longer than `limit_ns` all the same, `late` gets the reason and the process ends.
  static StatusOr<Communicator> Group(Mpi* mpi, MpiComm comm, const std::vector<int>& ranks, int tag, int64_t limit_ns,
                                      const std::function<void(const Status&)>& late = nullptr);
  ~Communicator() { Free(); }
  Communicator(Communicator&& other) noexcept
      : mpi_(std::exchange(other.mpi_, nullptr)),
        comm_(other.comm_),
        rank_(other.rank_),
        size_(other.size_),
        abandoned_(other.abandoned_) {}
  Communicator& operator=(Communicator&& other) noexcept;

  Mpi& mpi() const { return *mpi_; }
  MpiComm get() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  bool empty() const { return mpi_ == nullptr; }
  // Leaves the communicator to the library, unfreed: another rank may still be sending on it.
  void Abandon() { abandoned_ = true; }

 private:
  Communicator(Mpi* mpi, MpiComm comm) : mpi_(mpi), comm_(comm), rank_(mpi->Rank(comm)), size_(mpi->Size(comm)) {}
  void Free();

  Mpi* mpi_ = nullptr;
  MpiComm comm_;
  int rank_ = 0;
  int size_ = 1;
  bool abandoned_ = false;
};

}  // namespace horocache::net
