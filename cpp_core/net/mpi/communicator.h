// A communicator of our own, and requests that end in time.
//
// Note [A request that is late]
// MPI gives no way to take back a collective that has been started: its memory belongs to the library until it is
// complete. Who gives up on one therefore leaves its memory to the library for good; after that the job cannot go on
// anyway.
//
// Note [Receives from any source]
// MPICH waits for such a receive at two places, its shared memory and its network. When messages come to both at once,
// it cancels the one that has just been matched and never completes the other (its issues 7203 and 7702; 5.0.2 does it
// within a few hundred messages). So nothing here is received from any source: what has arrived is taken with a matched
// probe, or it is received from each rank in turn.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "net/mpi/mpi.h"

namespace horocache::net {

// A wait calls it from time to time, on the thread that waits. If it does not return ok, the wait ends with its status;
// it is not ok from then on. May be null.
using WaitCheck = std::function<Status()>;
inline Status Ask(const WaitCheck& check) { return check ? check() : Status::Ok(); }

// Tests `request` until it is complete. kStartup with `what` when the time is over.
Status FinishInTime(Mpi& mpi, MpiRequest* request, int64_t deadline_ns, const std::string& what,
                    Mpi::Received* received = nullptr, const WaitCheck& check = nullptr);

// One message of bytes, to or from a rank of `comm`. What is late belongs to the library, with its memory.
Status SendInTime(Mpi& mpi, MpiComm comm, const std::string& bytes, int to, int tag, int64_t deadline_ns,
                  const WaitCheck& check = nullptr);
StatusOr<std::string> ReceiveInTime(Mpi& mpi, MpiComm comm, size_t most, int from, int tag, int64_t deadline_ns,
                                    const WaitCheck& check = nullptr);

// Freed by its owner, in the order in which it was made on all ranks of it, while MPI is not finalised.
class Communicator {
 public:
  Communicator() = default;
  // A copy of `comm`, which all its ranks make together. kStartup when the time is over.
  static StatusOr<Communicator> Duplicate(Mpi* mpi, MpiComm comm, int64_t deadline_ns, const WaitCheck& check);
  // `comm` itself, which stays its owner's.
  static Communicator Borrow(Mpi* mpi, MpiComm comm);
  // Of some ranks of `comm`, made by these alone. MPI waits for them inside, so CompareMembers finds out before whether
  // they come: when the time is over nevertheless, `late` is told why, and the process ends.
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
  // Leaves it to the library: somebody may still be sending on it.
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
